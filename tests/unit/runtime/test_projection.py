"""A projection applies each record once, in order, and knows when it has seen what was there at its start."""

from __future__ import annotations

import asyncio

import pytest

from services.runtime.projection import Projection, Start
from services.runtime.topics import KV_EVENTS
from tests.unit.runtime.making import record


def projection() -> tuple[Projection, list[int]]:
    seen: list[int] = []
    return Projection(KV_EVENTS, lambda item: seen.append(item.offset)), seen


def test_it_has_not_caught_up_before_it_knows_where_the_topic_ends() -> None:
    subject, _ = projection()
    subject.settle()
    assert not subject.caught_up
    subject.begin({0: 0, 1: 0})
    subject.note_highwater(0, 0)
    subject.settle()
    assert not subject.caught_up
    subject.note_highwater(1, 0)
    subject.settle()
    assert subject.caught_up


def test_caught_up_means_the_first_highwater_not_the_latest() -> None:
    subject, seen = projection()
    subject.begin({0: 0})
    subject.note_highwater(0, 2)
    for offset in (0, 1):
        subject.take(record(offset))
    subject.note_highwater(0, 50)
    subject.settle()
    assert subject.caught_up
    assert seen == [0, 1]
    assert subject.highwaters == {0: 50}


def test_records_before_its_position_are_not_applied_again() -> None:
    subject, seen = projection()
    subject.begin({0: 5})
    for offset in (3, 5, 5, 4, 6):
        subject.take(record(offset))
    assert seen == [5, 6]
    assert subject.positions == {0: 7}


def test_a_record_that_cannot_be_applied_is_passed() -> None:
    def apply(_: object) -> None:
        raise ValueError("rubbish")

    subject = Projection(KV_EVENTS, apply)
    subject.begin({0: 0})
    with pytest.raises(ValueError, match="rubbish"):
        subject.take(record(0))
    assert subject.positions == {0: 1}


def test_offsets_without_records_are_passed() -> None:
    subject, _ = projection()
    subject.begin({0: 0})
    subject.note_highwater(0, 9)
    subject.advance(0, 9)
    subject.advance(0, 4)
    subject.settle()
    assert subject.caught_up
    assert subject.positions == {0: 9}


async def test_waiting_for_positions() -> None:
    subject, _ = projection()
    subject.begin({0: 0, 1: 0})
    await subject.wait_past({0: 0})
    waiting = asyncio.create_task(subject.wait_past({0: 1, 1: 1}))
    subject.take(record(0))
    subject.settle()
    await asyncio.sleep(0)
    assert not waiting.done()
    subject.take(record(0, partition=1))
    subject.settle()
    await asyncio.wait_for(waiting, 10)


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    subject, _ = projection()
    subject.begin({0: 0})
    waiting = asyncio.create_task(subject.wait_past({0: 1}))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert subject._waiting == []


def test_a_start_by_time_needs_a_time() -> None:
    with pytest.raises(ValueError, match="give since_ms"):
        Projection(KV_EVENTS, lambda _: None, start=Start.SINCE)
