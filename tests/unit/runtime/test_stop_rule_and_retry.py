"""When a stage gives up, and when a try is repeated."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from services.runtime.retry import Backoff
from services.runtime.stop_rule import StopRule


def test_so_many_failures_in_a_row_trip_the_rule() -> None:
    rule = StopRule(3)
    for cause in ("one", "two"):
        rule.failed(cause)
    assert not rule.tripped.is_set()
    rule.failed("three")
    rule.failed("four")
    assert rule.tripped.is_set()
    assert rule.cause == "three"


def test_a_success_ends_the_row() -> None:
    rule = StopRule(2)
    for _ in range(10):
        rule.failed("x")
        rule.succeeded()
    assert not rule.tripped.is_set()


async def test_it_is_no_outage_when_patience_ends_quietly() -> None:
    assert not await StopRule(5, patience=0.0).outage("x")


async def test_it_is_no_outage_when_another_record_succeeds() -> None:
    rule = StopRule(5, patience=3600)
    waiting = asyncio.create_task(rule.outage("x"))
    await asyncio.sleep(0)
    rule.succeeded()
    assert not await asyncio.wait_for(waiting, 10)


async def test_it_is_an_outage_when_enough_records_fail() -> None:
    rule = StopRule(3, patience=3600)
    results = await asyncio.wait_for(asyncio.gather(*(rule.outage("database away") for _ in range(3))), 10)
    assert results == [True, True, True]


@given(st.integers(0, 20), st.floats(0, 1, exclude_max=True))
def test_waits_grow_are_bounded_and_end(tries: int, chance: float) -> None:
    backoff = Backoff(tries=tries)
    waits = [backoff.wait(failed, chance) for failed in range(1, tries + 1)]
    assert all(wait is not None and 0.08 <= wait <= 12.0 for wait in waits)
    assert waits == sorted(wait for wait in waits if wait is not None)
    assert backoff.wait(tries + 1, chance) is None
