"""The router stage on a service in memory: what it decides, what it answers, how it keeps up."""

from __future__ import annotations

import pytest

from schemas.control import Control, ControlKind
from schemas.decision import Mode, Outcome
from schemas.kv_event import KvEvents, KvSnapshot
from schemas.lifecycle import LifecycleEvent as Event
from schemas.worker import WorkerState
from services.runtime.errors import BadRecord, ConfigError, Transient
from services.runtime.settings import Settings
from services.runtime.topics import CONTROL, DECISIONS, EXPANDED, HEARTBEATS, KV_EVENTS, LIFECYCLE, WORKERS, work_topic
from tests.unit.router import build as make
from tests.unit.router.build import NOW_MS, chain, worker
from tests.unit.router.stage import REPLY, Stage, start

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
