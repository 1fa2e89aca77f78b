"""Readers that come and go lose nothing and keep the order of each key."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from services.runtime.bus import Record
from services.runtime.intake import Intake
from tests.unit.runtime.making import record, treatment
from tests.waiting import eventually


class Partition:
    """A broker's partition and what its readers did to it."""

    def __init__(self, count: int, keys: int) -> None:
        self.records = [record(n, key=f"k{n % keys}") for n in range(count)]
        self.committed = 0
        self.done: list[int] = []


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 40),
    keys=st.integers(1, 10),
    concurrency=st.integers(1, 5),
    lives=st.lists(st.integers(0, 60), max_size=4),
    delays=st.lists(st.integers(0, 6), min_size=40, max_size=40),
    batch=st.integers(1, 9),
)
def test_nothing_is_lost_and_no_order_breaks_over_any_number_of_revocations(
    count: int, keys: int, concurrency: int, lives: list[int], delays: list[int], batch: int
) -> None:
    """Readers come and go after arbitrary numbers of steps; the next one begins at the committed offset."""
    partition = Partition(count, keys)

    async def life(steps: int | None) -> None:
        async def handle(item: Record) -> None:
            for _ in range(delays[item.offset]):
                await asyncio.sleep(0)
            partition.done.append(item.offset)

        async def commit(offsets: dict[int, int]) -> None:
            offset = offsets[0]
            assert all(n in partition.done for n in range(offset)), "committed over an unfinished record"
            partition.committed = offset

        intake = Intake(treatment(handle), commit=commit, concurrency=concurrency, on_commit_failed=lambda _: None)
        intake.assigned(frozenset({0}))

        async def read() -> None:
            position = partition.committed
            while position < count:
                await intake.take(partition.records[position : position + batch])
                position += batch

        reading = asyncio.create_task(read())
        if steps is None:
            await reading
            await eventually(lambda: intake.in_flight == 0)
        for _ in range(steps or 0):
            await asyncio.sleep(0)
        await intake.commit()
        await intake.revoked(frozenset({0}), 0)
        await asyncio.wait_for(reading, 10) if steps is None else reading.cancel()
        assert intake.in_flight == 0

    async def all_lives() -> None:
        for steps in lives:
            begun = len(partition.done)
            await life(steps)
            in_order(partition.done[begun:])
        begun = len(partition.done)
        await life(None)
        in_order(partition.done[begun:])

    def in_order(done: list[int]) -> None:
        for key in range(keys):
            mine = [n for n in done if n % keys == key]
            assert mine == sorted(mine), "records of one key were handled out of order"

    asyncio.run(all_lives())
    assert partition.committed == count
    assert set(partition.done) == set(range(count))
