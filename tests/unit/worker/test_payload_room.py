"""Bytes of media on their way: bounded, in order, given back whatever happens."""

from __future__ import annotations

import asyncio
import random

from services.worker.payload_room import PayloadRoom


async def test_who_finds_no_room_waits_its_turn() -> None:
    room, order = PayloadRoom(10), []

    async def one(name: str, size: int) -> None:
        async with room.hold(size):
            order.append(name)
            assert room.held <= 10
            await asyncio.sleep(0)

    await asyncio.gather(one("a", 6), one("b", 6), one("c", 3), one("huge", 99), one("d", 1))
    assert order == ["a", "b", "c", "huge", "d"], "a small one does not overtake: the large would never come"
    assert room.held == 0


async def test_one_that_is_given_up_while_it_waits_leaves_no_trace() -> None:
    room = PayloadRoom(10)
    async with room.hold(10):
        waiting = [asyncio.create_task(_held(room, size)) for size in (5, 5)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert room.held == 0


async def test_whoever_is_cancelled_whenever_all_is_given_back() -> None:
    room, chance = PayloadRoom(10), random.Random(1)
    tasks = [asyncio.create_task(_held(room, chance.randint(0, 12))) for _ in range(200)]
    while not all(task.done() for task in tasks):
        chance.choice(tasks).cancel()
        assert room.held <= 10
        await asyncio.sleep(0)
    assert room.held == 0


async def _held(room: PayloadRoom, size: int) -> None:
    async with room.hold(size):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
