"""One thing at a time per key, any number of keys at once, nothing left behind."""

from __future__ import annotations

import asyncio

from services.router.key_locks import KeyLocks


async def test_one_key_is_held_once_at_a_time() -> None:
    locks, order, go_on = KeyLocks(), [], asyncio.Event()

    async def first() -> None:
        async with locks.hold("a"):
            order.append("first in")
            await go_on.wait()
            order.append("first out")

    async def second() -> None:
        async with locks.hold("a"):
            order.append("second in")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(first())
        tasks.create_task(second())
        await asyncio.sleep(0)
        async with locks.hold("b"):
            order.append("other key")
        go_on.set()
    assert order == ["first in", "other key", "first out", "second in"]
    assert len(locks) == 0


async def test_a_holder_that_fails_lets_go() -> None:
    locks = KeyLocks()
    try:
        async with locks.hold("a"):
            raise RuntimeError
    except RuntimeError:
        pass
    assert len(locks) == 0
