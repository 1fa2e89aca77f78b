"""One piece of work for all who ask for it at the same time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from services.media.flights import Flights


class Work:
    def __init__(self) -> None:
        self.begun = 0
        self.ended: list[str] = []
        self.go = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended.append("given up")
            raise
        self.ended.append("done")
        return self.begun


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def waiters(flights: Flights[str, int], work: Work, number: int) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(flights.share("k", work)) for _ in range(number)]
    await settle()
    return tasks


async def test_all_get_the_one_result() -> None:
    flights: Flights[str, int] = Flights()
    work = Work()
    tasks = await waiters(flights, work, 3)
    work.go.set()
    assert await asyncio.gather(*tasks) == [1, 1, 1]
    assert len(flights) == 0


async def test_one_that_leaves_leaves_the_others_theirs() -> None:
    flights: Flights[str, int] = Flights()
    work = Work()
    first, second = await waiters(flights, work, 2)
    first.cancel()
    await settle()
    work.go.set()
    assert await second == 1
    assert work.ended == ["done"]


async def test_when_the_last_one_leaves_the_work_is_given_up() -> None:
    flights: Flights[str, int] = Flights()
    work = Work()
    for task in await waiters(flights, work, 2):
        task.cancel()
    await settle()
    assert work.ended == ["given up"]
    assert len(flights) == 0


async def test_who_comes_after_that_begins_anew() -> None:
    flights: Flights[str, int] = Flights()
    work = Work()
    (gone,) = await waiters(flights, work, 1)
    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    (task,) = await waiters(flights, work, 1)
    work.go.set()
    assert await task == 2


async def test_an_error_is_everybodys() -> None:
    flights: Flights[str, int] = Flights()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise ValueError("no")

    tasks = [asyncio.create_task(flights.share("k", fail)) for _ in range(2)]
    for task in tasks:
        with pytest.raises(ValueError, match="no"):
            await task


async def test_closing_gives_up_everything() -> None:
    flights: Flights[str, int] = Flights()
    work = Work()
    tasks = await waiters(flights, work, 2)
    await flights.close()
    assert work.ended == ["given up"]
    assert all(isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*tasks, return_exceptions=True))
