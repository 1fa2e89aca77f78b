"""Work off the loop: results and errors come back, what hangs or crashes is ended and replaced."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator

import pytest

from services.runtime.offload import DecodePool, OffloadCrashed, OffloadTimeout, run_alone, run_in_thread
from tests.unit.runtime.child_work import crash, hang, pid


async def test_a_thread_returns_values_and_errors() -> None:
    assert await run_in_thread(lambda: threading.current_thread().name) != threading.main_thread().name
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(lambda: 1 // 0)


async def test_what_holds_the_lock_runs_alone_and_the_loop_in_between() -> None:
    """The next one is started by the loop, whoever stopped waiting for the one before."""
    running: list[str] = []
    most = 0

    def hold(name: str) -> str:
        nonlocal most
        running.append(name)
        most = max(most, len(running))
        time.sleep(0.01)
        running.remove(name)
        return name

    tasks = [asyncio.create_task(run_alone(hold, name)) for name in "abcd"]
    await asyncio.sleep(0.005)
    tasks[0].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert (results[1:], most, running) == (["b", "c", "d"], 1, [])
    with pytest.raises(ZeroDivisionError):
        await run_alone(lambda: 1 // 0)


class TestThreads:
    async def test_a_deadline_ends_the_waiting(self) -> None:
        pool = DecodePool(0)
        assert await pool.run(sum, [1, 2], seconds=5) == 3
        with pytest.raises(OffloadTimeout, match=r"sleep took longer than 0\.01 s"):
            await pool.run(time.sleep, 0.2, seconds=0.01)


class TestProcesses:
    @pytest.fixture
    def pool(self) -> Iterator[DecodePool]:
        pool = DecodePool(1)
        yield pool
        pool.stop()

    async def test_a_process_is_kept_while_it_is_well_and_replaced_after_a_crash_and_a_hang(
        self, pool: DecodePool
    ) -> None:
        first = await pool.run(pid, seconds=60)
        assert first != os.getpid()
        with pytest.raises(TypeError):
            await pool.run(len, 5, seconds=60)
        assert await pool.run(pid, seconds=60) == first
        with pytest.raises(OffloadCrashed, match="died in crash"):
            await pool.run(crash, seconds=60)
        with pytest.raises(OffloadTimeout, match="hang took longer"):
            await pool.run(hang, seconds=0.05)
        assert await pool.run(pid, seconds=60) not in (first, os.getpid())

    async def test_a_cancelled_caller_ends_the_process_too(self, pool: DecodePool) -> None:
        task = asyncio.create_task(pool.run(hang, seconds=60))
        await asyncio.sleep(0)
        (executor,) = pool._alive
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert executor not in pool._alive
        assert len(pool._alive) == 1
