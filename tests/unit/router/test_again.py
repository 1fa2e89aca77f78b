"""An attempt that came to nothing goes elsewhere, or ends with an answer: once, and by the owner alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from schemas.control import Control, ControlKind
from schemas.decision import Outcome
from schemas.lifecycle import Lifecycle
from schemas.lifecycle import LifecycleEvent as Event
from schemas.media import MediaItem, MediaKind
from schemas.work import LOST_INDEX
from schemas.worker import WorkerState
from services.kv.reason import Reason
from services.runtime.bus import Record
from services.runtime.errors import BadRecord, Transient
from services.runtime.topics import CONTROL, DECISIONS, EXPANDED, LIFECYCLE, WORKERS, work_topic
from tests.unit.router import build as make
from tests.unit.router.build import NOW_MS, worker
from tests.unit.router.stage import Stage, start


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


async def test_what_kvroute_found_wrong_with_a_medium_comes_first(stage: Stage) -> None:
    """The engine fetches for itself and stumbles over the same; whoever asked wants to know which URL it is."""
    sound, _ = make.image(0, 16)
    broken = MediaItem(kind=MediaKind.IMAGE, message=0, part=1, reason=Reason.FETCH_FAILED, detail="HTTP 404")
    await stage.meet("w1")
    await stage.ask(media=[sound, broken], exact_tokens=32, reason=Reason.FETCH_FAILED, detail="HTTP 404")
    await stage.tell(Event.FAILED, retryable=True, status=500, code="engine_500", detail="404, message='Not Found'")
    assert stage.answers()[0].error.message == (
        "image 1: fetch_failed (HTTP 404); attempt 1 on worker w1 failed and there is no other "
        "(engine_500: 404, message='Not Found')"
    )


async def test_reasons_of_ours_are_no_explanation_of_an_engines_failure(stage: Stage) -> None:
    await stage.meet("w1")
    await stage.ask(exact_tokens=32, reason=Reason.CONTRACT_MISSING)
    await stage.tell(Event.FAILED, retryable=True, status=500, code="engine_500", detail="out of memory")
    assert stage.answers()[0].error.message.startswith("attempt 1 on worker w1 failed")


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


async def test_a_life_that_ends_after_output_ends_the_answer_and_is_stated_for_the_audit(stage: Stage) -> None:
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
    (last,) = stage.answers()
    assert (last.worker_id, last.epoch, last.index, last.final) == ("w1", 1, LOST_INDEX, True)
    assert (last.error.status, last.error.code) == (502, "worker_lost")
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
