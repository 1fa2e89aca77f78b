"""What becomes of one record: handled, tried again, or a dead letter. And whose fault it was."""

from __future__ import annotations

import asyncio

import pytest

from services.runtime import trace
from services.runtime.bus import Record
from services.runtime.errors import BadRecord, Refused, Transient
from services.runtime.stop_rule import StopRule
from tests.unit.runtime.making import Graveyard, Seen, record, treatment
from tests.waiting import eventually


class Failing:
    """Raises the given errors, one a call, then succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self, record: Record) -> None:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)


async def test_a_handled_record_is_finished_and_ends_a_row_of_failures() -> None:
    rule, seen = StopRule(20), Seen()
    rule.failed("before")
    assert await treatment(Failing(), rule=rule, seen=seen).treat(record(1))
    assert rule.in_a_row == 0
    assert seen.events == [("handled", 1, "")]


@pytest.mark.parametrize(
    ("error", "code"), [(BadRecord("not_json", "found text"), "not_json"), (Refused(400, "no messages"), "refused")]
)
async def test_input_errors_are_dead_letters_at_once_and_never_count(error: Exception, code: str) -> None:
    rule, graveyard = StopRule(1), Graveyard()
    handler = Failing(*[error] * 100)
    subject = treatment(handler, graveyard, rule=rule)
    for offset in range(100):
        assert await subject.treat(record(offset))
    assert handler.calls == 100
    assert graveyard.codes == [code] * 100
    assert rule.in_a_row == 0
    assert not rule.tripped.is_set()


async def test_what_may_heal_is_tried_again() -> None:
    seen, graveyard = Seen(), Graveyard()
    handler = Failing(Transient("away"), Transient("away"))
    assert await treatment(handler, graveyard, seen=seen).treat(record(1))
    assert handler.calls == 3
    assert graveyard.buried == []
    assert seen.events == [("retried", 1, "transient"), ("retried", 1, "transient"), ("handled", 1, "")]


async def test_tries_are_bounded() -> None:
    rule, graveyard = StopRule(20, patience=0.0), Graveyard()
    handler = Failing(*[Transient("worker w1 is away")] * 10)
    assert await treatment(handler, graveyard, rule=rule, tries=3).treat(record(1))
    assert handler.calls == 4
    assert [(code, message) for _, code, message in graveyard.buried] == [("transient", "worker w1 is away")]
    assert rule.in_a_row == 1


async def test_a_bug_is_tried_again_then_a_dead_letter_that_counts() -> None:
    rule, graveyard = StopRule(20), Graveyard()
    assert await treatment(Failing(*[KeyError("x")] * 10), graveyard, rule=rule, tries=2).treat(record(1))
    assert graveyard.codes == ["internal_error"]
    assert rule.in_a_row == 1


async def test_records_that_hit_a_bug_are_finished_before_the_stage_stops_so_a_restart_goes_on_behind_them() -> None:
    rule, graveyard = StopRule(3), Graveyard()
    subject = treatment(Failing(*[ValueError("bug")] * 100), graveyard, rule=rule, tries=0)
    assert [await subject.treat(record(offset)) for offset in range(5)] == [True, True, True, False, False]
    assert len(graveyard.buried) == 3
    assert rule.tripped.is_set()
    assert rule.cause == "ValueError: bug"


async def test_in_an_outage_the_stage_stops_and_no_record_is_called_dead() -> None:
    rule, graveyard = StopRule(3, patience=30.0), Graveyard()

    async def handler(_: Record) -> None:
        raise Transient("database away")

    subject = treatment(handler, graveyard, rule=rule, tries=1)
    results = await asyncio.gather(*(subject.treat(record(offset)) for offset in range(10)))
    assert results == [False] * 10
    assert graveyard.buried == []
    assert rule.cause == "database away"


async def test_while_others_succeed_a_record_that_keeps_failing_is_dead() -> None:
    rule, graveyard = StopRule(3, patience=30.0), Graveyard()

    async def handler(record: Record) -> None:
        if record.offset == 0:
            raise Transient("only this one")

    subject = treatment(handler, graveyard, rule=rule, tries=1)
    poisoned = asyncio.create_task(subject.treat(record(0)))
    await eventually(lambda: rule.in_a_row == 1)
    assert await subject.treat(record(1))
    assert await poisoned
    assert graveyard.codes == ["transient"]


async def test_a_dead_letter_is_repeated_until_the_broker_has_it() -> None:
    rule, graveyard = StopRule(1_000_000), Graveyard()
    graveyard.away = Transient("broker away")
    task = asyncio.create_task(treatment(Failing(BadRecord("bad", "x")), graveyard, rule=rule).treat(record(1)))
    await eventually(lambda: rule.in_a_row >= 3)
    assert not task.done()
    graveyard.away = None
    assert await task
    assert graveyard.codes == ["bad"]


async def test_when_dead_letters_cannot_be_stored_the_stage_stops_and_the_record_stays() -> None:
    rule, graveyard = StopRule(5), Graveyard()
    graveyard.away = Transient("broker away")
    assert not await treatment(Failing(BadRecord("bad", "x")), graveyard, rule=rule).treat(record(1))
    assert rule.tripped.is_set()


async def test_a_cancellation_from_within_the_handler_is_a_failure_of_ours() -> None:
    graveyard = Graveyard()
    assert await treatment(Failing(asyncio.CancelledError()), graveyard).treat(record(1))
    assert graveyard.buried == []


async def test_a_cancellation_from_outside_ends_the_treatment() -> None:
    async def handler(_: Record) -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(treatment(handler).treat(record(1)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_trace_of_the_record_is_current_while_it_is_handled() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    seen: list[str | None] = []

    async def handler(_: Record) -> None:
        seen.append(trace.current.get())

    one = record(1)
    traced = Record(one.topic, 0, 1, 0, None, b"", (("traceparent", parent.encode()),))
    broken = Record(one.topic, 0, 2, 0, None, b"", (("traceparent", b"\xff" * 55),))
    for item in (traced, one, broken):
        await asyncio.create_task(treatment(handler).treat(item))
    assert seen == [parent, None, None]
