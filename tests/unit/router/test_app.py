"""The router stage on a service in memory: once, again, the gate, and everything it says to the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from schemas.control import Control, ControlKind
from schemas.decision import Decision, Mode, Outcome
from schemas.kv_event import KvChange, KvEvents, KvOp, KvSnapshot
from schemas.lifecycle import Lifecycle
from schemas.lifecycle import LifecycleEvent as Event
from schemas.work import Response, Work
from schemas.worker import WorkerState
from services.router.app import Router, build
from services.runtime.bus import Record
from services.runtime.errors import BadRecord, ConfigError, Transient
from services.runtime.projection import Projection
from services.runtime.settings import Settings
from services.runtime.topics import (
    CONTROL,
    DECISIONS,
    EXPANDED,
    HEARTBEATS,
    KV_EVENTS,
    LIFECYCLE,
    WORKERS,
    work_topic,
)
from tests.fakes import FakeClock, Harness
from tests.unit.router import build as make
from tests.unit.router.build import NOW_MS, chain, heartbeat, worker

REPLY = "kvroute.responses.me"


class Stage:
    """A router, its service, and the questions tests ask of it."""

    def __init__(self, harness: Harness, router: Router) -> None:
        self.harness = harness
        self.router = router
        self.clock = harness.clock
        self._seqs: dict[str, int] = {}

    async def meet(self, *names: str, epoch: int = 1, **fields) -> None:
        for name in names:
            await self.harness.push(WORKERS, worker(name, epoch=epoch, **fields))
            await self.beat(name, epoch=epoch)

    async def beat(self, name: str, *, epoch: int = 1, **fields) -> None:
        await self.harness.push(HEARTBEATS, heartbeat(name, epoch=epoch, **fields))

    async def hold(self, name: str, blocks: int, *, epoch: int = 1, root: int = 1) -> None:
        """Let events say that a worker holds the first blocks of a prompt."""
        seq = self._seqs.get(name, 0)
        snapshot = KvSnapshot(id=0, part=0, parts=1) if seq == 0 else None
        changes = [] if seq == 0 else [KvChange(op=KvOp.STORED, addresses=chain(blocks, root))]
        self._seqs[name] = seq + 1
        event = KvEvents(
            worker_id=name, epoch=epoch, seq=seq, model=make.MODEL, block_size=16, snapshot=snapshot, changes=changes
        )  # fmt: skip
        await self.harness.push(KV_EVENTS, event, key=name)
        if seq == 0:
            await self.hold(name, blocks, epoch=epoch, root=root)

    async def ask(self, request_id: str = "r1", **fields) -> Record:
        fields.setdefault("reply_to", REPLY)
        return await self.harness.push(EXPANDED, make.expanded(request_id, **fields))

    async def ask_without_owner(self) -> Record:
        """An expanded record that another replica has handled."""
        request = make.expanded(reply_to=REPLY)
        record = self.harness.sender.record(EXPANDED.name, request.to_bytes(), request.key.encode(), None)
        self.harness.stored[record.topic, record.partition, record.offset] = record
        return record

    async def tell(self, event: Event, request_id: str = "r1", attempt: int = 1, **fields) -> None:
        await self.harness.push(LIFECYCLE, make.fact(event, request_id, attempt, **fields))
        await self.settle()

    async def settle(self) -> None:
        """Let spawned tasks finish."""
        for task in self.harness.tasks:
            await asyncio.wait_for(asyncio.shield(task), 5)

    def decisions(self) -> list[Decision]:
        return self.harness.sender.messages(DECISIONS.name, Decision)

    def decisions_projection(self) -> Projection:
        return next(p for p in self.harness.projections if p.topic is DECISIONS)

    def work(self, name: str) -> list[Work]:
        return self.harness.sender.messages(work_topic(name), Work)

    def all_work(self) -> list[tuple[str, int]]:
        works = [sent.message for sent in self.harness.sender.sent if isinstance(sent.message, Work)]
        return [(work.worker_id, work.attempt) for work in works]

    def answers(self) -> list[Response]:
        return self.harness.sender.messages(REPLY, Response)

    def facts(self) -> list[tuple[Event, int, str | None]]:
        return [(f.event, f.attempt, f.code) for f in self.harness.sender.messages(LIFECYCLE.name, Lifecycle)]

    def orders(self) -> list[Control]:
        return self.harness.sender.messages(CONTROL.name, Control)


def start(settings: Settings | None = None, *, instance: str = "router-1", loopback: bool = True) -> Stage:
    settings = (settings or Settings()).model_copy(update={"instance": instance})
    harness = Harness("router", settings, clock=FakeClock(NOW_MS), loopback=loopback)
    return Stage(harness, build(settings, harness))


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = start()
    await stage.harness.start()
    await stage.harness.assign(EXPANDED, {0})
    yield stage
    await stage.harness.stop()


# Deciding


async def test_a_request_goes_to_the_worker_that_holds_it(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.hold("w2", blocks=5)
    record = await stage.ask()
    decision = stage.decisions()[0]
    assert (decision.worker_id, decision.overlap_confirmed, decision.mode) == ("w2", 5, Mode.EXACT)
    assert decision.expanded == record.position
    assert [(one.partition, one.offset) for one in decision.projection] == [(0, 2)]
    assert (decision.now_ms, decision.router) == (NOW_MS, "router-1")
    work = stage.work("w2")[0]
    assert (work.request_id, work.attempt, work.epoch, work.reply_to) == ("r1", 1, 1, REPLY)


async def test_the_decision_is_acknowledged_before_work_is_sent(stage: Stage) -> None:
    await stage.meet("w1")
    await stage.ask()
    topics = [sent.topic for sent in stage.harness.sender.sent]
    assert topics == [DECISIONS.name, work_topic("w1")]
    stage.harness.sender.fail_next(Transient("no broker"), DECISIONS.name)
    with pytest.raises(Transient):
        await stage.ask("r2")
    assert stage.all_work() == [("w1", 1)]


async def test_a_decision_whose_ack_failed_is_sent_again_unchanged(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    stage.harness.sender.fail_next(Transient("no broker"), DECISIONS.name)
    with pytest.raises(Transient):
        await stage.ask()
    record = next(r for r in stage.harness.stored.values() if r.topic == EXPANDED.name)
    chosen = stage.router.state.requests.get("/r1").standing.life.worker_id
    for _ in range(3):
        await stage.hold("w1" if chosen == "w2" else "w2", blocks=8)
    await stage.router.handle(record)
    assert [decision.worker_id for decision in stage.decisions()] == [chosen]
    assert stage.all_work() == [(chosen, 1)]


async def test_a_burst_with_one_new_prefix_is_not_sprayed(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.ask("other", root=2, tokens=64)
    for number in range(3):
        await stage.ask(f"r{number}", tokens=1024)
    (other, _), *burst = stage.all_work()
    assert {worker_id for worker_id, _ in burst} == {"w1", "w2"} - {other}


async def test_a_long_burst_is_not_piled_either(stage: Stage) -> None:
    await stage.meet("w1", "w2", "w3", "w4")
    for number in range(40):
        await stage.ask(f"r{number}", tokens=1024)
    homes = [worker_id for worker_id, _ in stage.all_work()]
    assert all(5 <= homes.count(name) <= 15 for name in ("w1", "w2", "w3", "w4"))


async def test_no_worker_is_an_outcome_with_an_answer(stage: Stage) -> None:
    await stage.ask()
    assert stage.decisions()[0].outcome is Outcome.NO_WORKER
    answer = stage.answers()[0]
    assert (answer.attempt, answer.final, answer.error.status, answer.error.code) == (1, True, 503, "no_worker")
    assert stage.facts() == [(Event.REFUSED, 1, "no_worker")]


async def test_all_busy_is_another(stage: Stage) -> None:
    await stage.meet("w1", concurrency=1)
    for number in range(65):
        await stage.ask(f"r{number}")
    await stage.ask("last")
    assert stage.decisions()[-1].outcome is Outcome.ALL_BUSY
    assert (stage.answers()[0].error.status, stage.answers()[0].error.code) == (429, "all_busy")


async def test_a_passed_deadline_is_refused(stage: Stage) -> None:
    await stage.meet("w1")
    await stage.ask(deadline_ms=NOW_MS - 5)
    assert stage.decisions() == []
    assert stage.answers()[0].error.status == 504
    assert stage.facts() == [(Event.REFUSED, 0, "deadline_exceeded")]


async def test_a_cancelled_request_is_not_routed(stage: Stage) -> None:
    await stage.meet("w1")
    await stage.harness.push(CONTROL, Control(kind=ControlKind.CANCEL, at_ms=NOW_MS, request_id="r1"))
    await stage.ask()
    assert stage.decisions() == []
    assert stage.facts() == [(Event.CANCELLED, 0, "cancelled")]


async def test_rubbish_is_a_dead_letter_and_the_next_request_is_served(stage: Stage) -> None:
    await stage.meet("w1")
    for topic in (EXPANDED, DECISIONS, LIFECYCLE, KV_EVENTS, WORKERS, HEARTBEATS):
        await stage.harness.push(topic, b'{"no":"message"}', key="x")
    assert [dead.record.topic for dead in stage.harness.dead_letters] == [EXPANDED.name]
    assert {record.topic for record, _ in stage.harness.skipped} == {
        DECISIONS.name, LIFECYCLE.name, KV_EVENTS.name, WORKERS.name, HEARTBEATS.name,
    }  # fmt: skip
    await stage.ask()
    assert stage.all_work() == [("w1", 1)]


async def test_a_prompt_too_long_for_a_record_is_refused(stage: Stage) -> None:
    await stage.meet("w1")
    stage.harness.sender.fail_next(BadRecord("record_too_large", "2 MB"), DECISIONS.name)
    await stage.ask()
    assert stage.answers()[0].error.status == 413
    assert stage.all_work() == []
    assert len(stage.router.state.ledger) == 0


async def test_an_unknown_policy_says_which_there_are() -> None:
    with pytest.raises(ConfigError, match="round_robin"):
        start(Settings(policy="kvv"))


@pytest.mark.parametrize("policy", ["round_robin", "ttft"])
async def test_other_policies_route_too(policy: str) -> None:
    stage = start(Settings(policy=policy))
    await stage.harness.assign(EXPANDED, {0})
    await stage.meet("w1", "w2")
    for number in range(4):
        await stage.ask(f"r{number}")
    assert stage.decisions()[0].policy == policy
    assert len(stage.all_work()) == 4


# Asking for the route only


async def test_a_route_is_answered_and_nothing_is_sent_or_booked(stage: Stage) -> None:
    await stage.meet("w1")
    await stage.hold("w1", blocks=3)
    await stage.ask(route_only=True)
    assert stage.all_work() == []
    answer = stage.answers()[0]
    assert (answer.final, answer.route["worker_id"], answer.route["overlap_blocks"]) == (True, "w1", 3)
    assert len(stage.router.state.ledger) == 0


async def test_a_booked_route_counts_until_done(stage: Stage) -> None:
    await stage.meet("w1")
    await stage.ask(route_only=True, book=True)
    assert len(stage.router.state.ledger) == 1
    await stage.harness.push(CONTROL, Control(kind=ControlKind.DONE, at_ms=NOW_MS, request_id="r1"))
    assert len(stage.router.state.ledger) == 0


# Once


async def test_a_record_that_comes_again_sends_the_same_work_and_decides_nothing(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    record = await stage.ask()
    first = stage.decisions()[0]
    await stage.hold("w1" if first.worker_id == "w2" else "w2", blocks=8)
    await stage.router.handle(record)
    assert len(stage.decisions()) == 1
    assert stage.all_work() == [(first.worker_id, 1)] * 2


async def test_the_same_request_twice_is_one_request(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.ask()
    await stage.ask()
    assert len(stage.decisions()) == 1
    await stage.tell(Event.FINISHED)
    await stage.ask()
    assert len(stage.decisions()) == 1
    assert len(stage.all_work()) == 2


async def test_after_a_takeover_the_former_owners_decision_stands(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.hold("w1", blocks=8)
    theirs = make.decision(make.expanded(reply_to=REPLY), make.slot("w2"), router="router-0")
    await stage.harness.push(DECISIONS, theirs)
    await stage.ask()
    assert stage.decisions() == []
    assert stage.all_work() == [("w2", 1)]


async def test_nothing_is_routed_before_decisions_are_read_to_their_end_at_the_assignment() -> None:
    stage = start(loopback=False)
    await stage.meet("w1", "w2")
    theirs = make.decision(make.expanded(reply_to=REPLY), make.slot("w2"), router="router-0")
    await stage.harness.sender.send(DECISIONS.name, theirs, key=theirs.key)
    gate = asyncio.create_task(stage.harness.assign(EXPANDED, {0}))
    await asyncio.sleep(0.01)
    assert not gate.done()
    stage.harness.deliver()
    await asyncio.wait_for(gate, 5)
    await stage.ask()
    assert stage.all_work() == [("w2", 1)]


async def test_the_gate_waits_until_workers_had_the_time_to_be_heard() -> None:
    stage = start()
    await stage.harness.push(WORKERS, worker("w1"))
    gate = asyncio.create_task(stage.harness.assign(EXPANDED, {0}))
    await asyncio.sleep(0.06)
    assert not gate.done()
    assert not stage.harness.ready
    await stage.beat("w1")
    await asyncio.wait_for(gate, 5)
    assert stage.harness.ready


async def test_heartbeats_from_before_the_start_grant_no_lease() -> None:
    stage = start()
    beats = next(p for p in stage.harness.projections if p.topic is HEARTBEATS)
    beats._caught_up.clear()
    beats.targets = {0: 1}
    await stage.meet("w1")
    assert beats.caught_up
    assert not stage.harness.ready
    await stage.beat("w1")
    assert stage.harness.ready


async def test_a_decision_that_lost_is_cancelled_at_its_worker_and_its_work_not_sent() -> None:
    stage = start(loopback=False)
    await stage.harness.assign(EXPANDED, {0})
    await stage.meet("w1", "w2")
    await stage.hold("w1", blocks=8)
    theirs = make.decision(make.expanded(reply_to=REPLY), make.slot("w2"), router="router-0")
    first = stage.harness.sender.record(DECISIONS.name, theirs.to_bytes(), b"/r1", None)
    await stage.ask()
    assert stage.decisions()[0].worker_id == "w1"
    stage.decisions_projection().take(first)
    stage.harness.deliver()
    await stage.settle()
    order = stage.orders()[0]
    assert (order.kind, order.request_id, order.attempt, order.worker_id) == (ControlKind.CANCEL, "r1", 1, "w1")
    assert stage.router.state.requests.get("/r1").standing.life.worker_id == "w2"
    state = stage.router.state
    assert [state.ledger.load(make.slot(name).life).requests for name in ("w1", "w2")] == [0, 1]


async def test_a_decision_that_lost_before_its_ack_sends_no_work() -> None:
    stage = start(loopback=False)
    await stage.harness.assign(EXPANDED, {0})
    await stage.meet("w1", "w2")
    await stage.hold("w1", blocks=8)
    theirs = make.decision(make.expanded(reply_to=REPLY), make.slot("w2"), router="router-0")

    def overtake(record: Record) -> None:
        if record.topic == DECISIONS.name:
            stage.decisions_projection().apply(Record(DECISIONS.name, 0, 0, NOW_MS, b"/r1", theirs.to_bytes()))

    stage.harness.sender.on_sent = overtake
    await stage.ask()
    assert stage.all_work() == []


async def test_who_loses_sends_the_work_of_the_decision_that_was_first() -> None:
    """Its maker may have died between decision and work, and the record is committed by us."""
    stage = start(loopback=False)
    await stage.harness.assign(EXPANDED, {0})
    await stage.meet("w1", "w2")
    await stage.hold("w1", blocks=8)
    theirs = make.decision(make.expanded(reply_to=REPLY), make.slot("w2"), router="router-0")
    record = await stage.ask_without_owner()
    theirs = theirs.model_copy(update={"expanded": record.position})
    first = stage.harness.sender.record(DECISIONS.name, theirs.to_bytes(), b"/r1", None)
    await stage.router.handle(record)
    assert stage.all_work() == [("w1", 1)]
    stage.decisions_projection().take(first)
    stage.harness.deliver()
    await stage.settle()
    assert stage.all_work() == [("w1", 1), ("w2", 1)]


async def test_a_losers_end_does_not_free_the_load_of_the_worker_that_has_the_request(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.harness.push(DECISIONS, make.decision(make.expanded(), make.slot("w1"), router="router-0"))
    await stage.tell(Event.FAILED, worker_id="w2", epoch=1, retryable=True)
    assert stage.router.state.ledger.load(make.slot("w1").life).requests == 1
    assert stage.decisions() == []


# Again


async def test_a_failure_before_output_is_routed_elsewhere(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.hold("w1", blocks=8)
    await stage.ask()
    await stage.tell(Event.FAILED, retryable=True, code="connect_refused")
    assert stage.all_work() == [("w1", 1), ("w2", 2)]
    again = stage.decisions()[1]
    assert (again.attempt, again.excluded, again.expanded) == (2, ["w1/0"], stage.decisions()[0].expanded)
    assert stage.work("w2")[0].body == "{}"


async def test_a_failure_read_twice_is_routed_once(stage: Stage) -> None:
    await stage.meet("w1", "w2", "w3")
    await stage.ask()
    for _ in range(3):
        await stage.tell(Event.REFUSED, retryable=True)
    assert [attempt for _, attempt in stage.all_work()] == [1, 2]


async def test_a_failure_after_output_is_left_alone(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.ask()
    await stage.tell(Event.FIRST_TOKEN)
    await stage.tell(Event.FAILED, retryable=True, before_output=False)
    assert len(stage.all_work()) == 1
    assert len(stage.router.state.ledger) == 0


async def test_attempts_end_with_a_final_error(stage: Stage) -> None:
    await stage.meet("w1", "w2", "w3", "w4")
    await stage.ask()
    for attempt in (1, 2, 3):
        await stage.tell(Event.FAILED, attempt=attempt, retryable=True, code="engine_died")
    assert [attempt for _, attempt in stage.all_work()] == [1, 2, 3]
    assert len({worker_id for worker_id, _ in stage.all_work()}) == 3
    answer = stage.answers()[0]
    assert (answer.attempt, answer.final, answer.error.status, answer.error.code) == (3, True, 502, "engine_died")
    assert stage.facts()[-1] == (Event.FAILED, 3, "engine_died")
    assert stage.router.state.requests.settled("/r1")


async def test_nobody_left_to_try_is_no_worker(stage: Stage) -> None:
    await stage.meet("w1")
    await stage.ask()
    await stage.tell(Event.REFUSED, retryable=True)
    assert stage.decisions()[1].outcome is Outcome.NO_WORKER
    assert (stage.answers()[0].attempt, stage.answers()[0].error.status) == (2, 503)


@pytest.mark.parametrize(("said", "heard"), [(500, 502), (502, 502), (503, 503), (429, 429)])
async def test_nobody_left_to_try_after_a_failure_is_told_what_failed(stage: Stage, said: int, heard: int) -> None:
    """As for a picture the only engine can't fetch: that no worker is ready would say nothing of it."""
    await stage.meet("w1")
    await stage.ask()
    await stage.tell(Event.FAILED, retryable=True, status=said, code=f"engine_{said}", detail="can't fetch it")
    error = stage.answers()[0].error
    assert (error.status, error.code) == (heard, f"engine_{said}")
    assert error.message == f"attempt 1 on worker w1 failed and there is no other (engine_{said}: can't fetch it)"
    assert stage.router.state.requests.settled("/r1")


@pytest.mark.parametrize("how", ["higher epoch", "retired", "deleted"])
async def test_a_life_that_ends_before_output_is_stated_and_its_requests_go_elsewhere(stage: Stage, how: str) -> None:
    await stage.meet("w1", "w2")
    await stage.hold("w1", blocks=8)
    await stage.ask()
    endings: dict[str, Callable] = {
        "higher epoch": lambda: worker("w1", epoch=2),
        "retired": lambda: worker("w1", state=WorkerState.RETIRED),
        "deleted": lambda: None,
    }
    await stage.harness.push(WORKERS, endings[how](), key="w1")
    await stage.settle()
    if how == "deleted":
        stage.clock.advance(10)
        await stage.beat("w2")
        await stage.harness.tick("look")
        await stage.settle()
    assert stage.all_work() == [("w1", 1), ("w2", 2)]
    assert stage.facts()[0] == (Event.FAILED, 1, "worker_lost")
    assert (stage.orders()[0].kind, stage.orders()[0].attempt) == (ControlKind.CANCEL, 1)


async def test_a_lease_that_lapses_is_an_end(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.hold("w1", blocks=8)
    await stage.ask()
    stage.clock.advance(4)
    await stage.beat("w2")
    stage.clock.advance(4)
    await stage.harness.tick("look")
    await stage.settle()
    assert stage.all_work() == [("w1", 1), ("w2", 2)]


async def test_silence_while_the_broker_is_away_says_nothing_about_workers(stage: Stage, monkeypatch) -> None:
    await stage.meet("w1", "w2")
    await stage.ask()
    stage.clock.advance(20)

    async def away(*_args) -> dict[int, int]:
        raise Transient("no broker")

    monkeypatch.setattr(stage.harness, "highwater", away)
    await stage.harness.tick("look")
    monkeypatch.undo()
    await stage.harness.tick("look")
    await stage.settle()
    assert len(stage.all_work()) == 1
    stage.clock.advance(5)
    await stage.beat("w1")
    await stage.beat("w2")
    stage.clock.advance(2)
    await stage.harness.tick("look")
    await stage.settle()
    assert len(stage.all_work()) == 1


async def test_a_life_that_ends_after_output_is_stated_for_the_audit(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.hold("w1", blocks=8)
    await stage.ask()
    await stage.tell(Event.FIRST_TOKEN)
    await stage.harness.push(WORKERS, worker("w1", epoch=2))
    await stage.settle()
    assert stage.all_work() == [("w1", 1)]
    assert stage.facts() == [(Event.FAILED, 1, "worker_lost")]
    failed = stage.harness.sender.messages(LIFECYCLE.name, Lifecycle)[0]
    assert not failed.before_output
    assert stage.router.state.requests.settled("/r1")
    assert len(stage.router.state.ledger) == 0


async def test_a_worker_without_a_topic_is_passed_over(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.hold("w1", blocks=8)
    stage.harness.sender.fail_next(BadRecord("unknown_topic", "no such topic"), work_topic("w1"))
    await stage.ask()
    await stage.settle()
    assert stage.all_work() == [("w2", 2)]
    assert stage.facts()[0] == (Event.FAILED, 1, "unknown_topic")


async def test_a_cancelled_request_is_not_tried_again(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.ask()
    await stage.harness.push(CONTROL, Control(kind=ControlKind.CANCEL, at_ms=NOW_MS, request_id="r1"))
    await stage.tell(Event.FAILED, retryable=True)
    assert len(stage.all_work()) == 1
    assert stage.facts() == [(Event.CANCELLED, 1, "cancelled")]


async def test_a_record_that_is_gone_ends_the_request(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    record = await stage.ask()
    del stage.harness.stored[record.topic, record.partition, record.offset]
    await stage.tell(Event.FAILED, retryable=True)
    assert (stage.answers()[0].error.status, stage.answers()[0].error.code) == (502, "record_gone")


async def test_another_requests_record_at_the_old_position_is_not_taken_for_it(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    record = await stage.ask()
    other = make.expanded("r2").to_bytes()
    anew = Record(record.topic, record.partition, record.offset, NOW_MS, b"/r2", other)
    stage.harness.stored[record.topic, record.partition, record.offset] = anew
    await stage.tell(Event.FAILED, retryable=True)
    assert stage.answers()[0].error.code == "record_gone"
    assert len(stage.all_work()) == 1


async def test_an_attempt_that_fails_before_its_sender_is_done_is_tried_again(stage: Stage) -> None:
    await stage.meet("w1", "w2", "w3")
    await stage.ask()
    failed = {"retryable": True, "code": "engine_503"}

    def fail_at_once(record: Record) -> None:
        if record.topic.startswith("kvroute.work.") and len(stage.all_work()) == 2:
            fact = make.fact(Event.FAILED, attempt=2, **failed)
            stage.router._following.lifecycle(Record(LIFECYCLE.name, 0, 99, NOW_MS, b"/r1", fact.to_bytes()))

    stage.harness.sender.on_sent = fail_at_once
    await stage.tell(Event.FAILED, **failed)
    await stage.settle()
    assert [attempt for _, attempt in stage.all_work()] == [1, 2, 3]


async def test_nothing_is_tried_after_the_deadline(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.ask()
    stage.clock.advance(121)
    await stage.beat("w2")
    await stage.tell(Event.FAILED, retryable=True)
    assert (stage.answers()[0].attempt, stage.answers()[0].error.status) == (1, 504)


@pytest.mark.parametrize("topic", [DECISIONS.name, work_topic("w2")])
async def test_another_attempt_that_could_not_be_sent_is_sent_later(stage: Stage, topic: str) -> None:
    await stage.meet("w1", "w2")
    await stage.hold("w1", blocks=8)
    await stage.ask()
    stage.harness.sender.fail_next(Transient("no broker"), topic)
    await stage.tell(Event.FAILED, retryable=True)
    assert stage.all_work() == [("w1", 1)]
    await stage.harness.tick("look")
    await stage.settle()
    assert stage.all_work() == [("w1", 1), ("w2", 2)]
    assert [decision.attempt for decision in stage.decisions()] == [1, 2]


async def test_only_the_owner_of_the_partition_routes_again() -> None:
    stage = start()
    await stage.meet("w1", "w2")
    theirs = make.decision(make.expanded(), make.slot("w1"), router="router-0")
    await stage.harness.push(DECISIONS, theirs)
    await stage.tell(Event.FAILED, retryable=True)
    assert stage.decisions() == []
    await stage.harness.assign(EXPANDED, {1})
    await stage.settle()
    assert stage.decisions() == []


async def test_a_new_owner_picks_up_what_was_left_open() -> None:
    stage = start()
    await stage.meet("w1", "w2")
    record = await stage.ask_without_owner()
    theirs = make.decision(make.expanded(), make.slot("w1"), router="router-0")
    await stage.harness.push(DECISIONS, theirs.model_copy(update={"expanded": record.position}))
    await stage.tell(Event.FAILED, retryable=True)
    await stage.harness.assign(EXPANDED, {0})
    await stage.settle()
    assert stage.all_work() == [("w2", 2)]


async def test_a_new_owner_sends_the_work_of_a_second_attempt_again() -> None:
    stage = start()
    await stage.meet("w1", "w2")
    record = await stage.ask_without_owner()
    for attempt, name in ((1, "w1"), (2, "w2")):
        theirs = make.decision(make.expanded(), make.slot(name), attempt=attempt, router="router-0")
        await stage.harness.push(DECISIONS, theirs.model_copy(update={"expanded": record.position}))
    await stage.harness.assign(EXPANDED, {0})
    await stage.settle()
    assert stage.decisions() == []
    assert stage.all_work() == [("w2", 2)]


async def test_a_partition_that_was_lost_is_left_to_its_new_owner(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.ask()
    await stage.harness.revoke(EXPANDED, {0})
    await stage.tell(Event.FAILED, retryable=True)
    assert len(stage.decisions()) == 1


# Keeping up


async def test_finished_before_the_decision_is_read_books_nothing() -> None:
    stage = start()
    await stage.meet("w1")
    await stage.tell(Event.FINISHED)
    await stage.harness.push(DECISIONS, make.decision(make.expanded(), make.slot("w1"), router="router-0"))
    assert len(stage.router.state.ledger) == 0


async def test_an_uncertain_slot_is_asked_for_a_snapshot(stage: Stage) -> None:
    await stage.meet("w1")
    await stage.hold("w1", blocks=2)
    stage._seqs["w1"] += 1
    await stage.hold("w1", blocks=4)
    await stage.ask()
    assert stage.decisions()[0].candidates[0].uncertain
    stage.clock.advance(3)
    await stage.beat("w1")
    await stage.harness.tick("look")
    await stage.harness.tick("look")
    assert [(order.kind, order.worker_id, order.epoch) for order in stage.orders()] == [(ControlKind.SNAPSHOT, "w1", 1)]


async def test_kv_events_are_read_from_the_snapshots_of_the_living(stage: Stage) -> None:
    offsets = next(p for p in stage.harness.projections if p.topic is KV_EVENTS).offsets
    assert offsets() == dict.fromkeys(range(12), -1)
    await stage.harness.push(WORKERS, worker("w1"))
    await stage.beat("w1", snapshot={"topic": KV_EVENTS.name, "partition": 3, "offset": 77})
    assert offsets()[3] == 77


async def test_large_records_are_applied_in_slices(stage: Stage) -> None:
    await stage.meet("w1")
    event = KvEvents(
        worker_id="w1", epoch=1, seq=0, model=make.MODEL, block_size=16,
        snapshot=KvSnapshot(id=0, part=0, parts=1, addresses=chain(60_000)),
    )  # fmt: skip
    await stage.harness.push(KV_EVENTS, event, key="w1")
    assert stage.router.state.kv.behind == 1
    await stage.settle()
    assert stage.router.state.kv.behind == 0
    await stage.ask()
    assert stage.decisions()[0].overlap_confirmed == 8


async def test_a_retired_worker_is_swept_out_of_the_index(stage: Stage) -> None:
    await stage.meet("w1")
    await stage.hold("w1", blocks=100)
    index = stage.router.state.kv.indexes[make.MODEL, 16]
    assert len(index) == 100
    await stage.harness.push(WORKERS, worker("w1", state=WorkerState.RETIRED))
    await stage.harness.tick("look")
    assert len(index) == 0


async def test_what_is_long_over_is_not_taken_over(stage: Stage) -> None:
    theirs = make.decision(make.expanded(reply_to=REPLY), make.slot("w1"), router="router-0")
    await stage.harness.push(DECISIONS, theirs)
    stage.clock.advance(1000)
    await stage.harness.assign(EXPANDED, {0})
    await stage.settle()
    assert stage.answers() == []
    assert stage.facts() == []


async def test_tidying_forgets_requests_nobody_ended(stage: Stage) -> None:
    await stage.meet("w1")
    await stage.ask()
    stage.clock.advance(200)
    await stage.harness.tick("tidy")
    assert len(stage.router.state.requests) == 0
    assert len(stage.router.state.ledger) == 0
