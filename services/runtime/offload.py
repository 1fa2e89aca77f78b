"""Work that is too long for the event loop: threads for what releases the GIL, processes for what can't be trusted."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from services.runtime.errors import KvrouteError
from services.runtime.metrics import OFFLOADED_SECONDS
from services.runtime.offload_child import prepare_child

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = min(8, (os.cpu_count() or 2) + 2)
_pool: ThreadPoolExecutor | None = None
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class OffloadTimeout(KvrouteError):
    """The work took longer than it was given; a process that did it was ended."""


class OffloadCrashed(KvrouteError):
    """The process that did the work died (out of memory, a crash in a native library)."""


async def run_in_thread(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread of a pool of our own and return what it returns.

    Worth it from about 1 ms on. A cancelled caller stops waiting; the function runs to its end.
    """
    global _pool
    if _pool is None:
        # Not asyncio's default pool: name lookups wait there, and a burst of decoding must not hold them up.
        _pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="kvroute")
    started = time.perf_counter()
    try:
        return await asyncio.get_running_loop().run_in_executor(_pool, lambda: fn(*args, **kwargs))
    finally:
        OFFLOADED_SECONDS.labels("thread").observe(time.perf_counter() - started)


async def run_alone(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """As run_in_thread, for what holds the interpreter's lock to its end, such as parsing megabytes: one at a time.

    Several at once would hand the lock to one another. One alone gives it back to the event loop, which starts the
    next: the loop is late by one of them at the most.
    """
    loop = asyncio.get_running_loop()
    gate = _gates.get(loop)
    if gate is None:
        gate = _gates[loop] = asyncio.Lock()
    async with gate:
        work = asyncio.ensure_future(run_in_thread(fn, *args, **kwargs))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # The thread goes on whoever stops waiting, and so does its turn.
            await asyncio.gather(work, return_exceptions=True)
            raise


class DecodePool:
    """Processes for decoding what strangers send: one that hangs or crashes is ended, and the next call gets a new one.

    With 0 processes the work runs in threads and a deadline only ends the waiting.
    """

    def __init__(self, processes: int = 1) -> None:
        self._processes = processes
        self._executors: asyncio.Queue[ProcessPoolExecutor] = asyncio.Queue()
        self._alive: set[ProcessPoolExecutor] = set()
        for _ in range(processes):
            self._add()

    async def run(self, fn: Callable[..., T], /, *args: object, seconds: float) -> T:
        """Run a function that is importable by name, with arguments that can be pickled.

        Raises OffloadTimeout after ``seconds`` (waiting for a free process not counted), OffloadCrashed when the
        process died, and whatever the function raises.
        """
        if not self._processes:
            try:
                return await asyncio.wait_for(run_in_thread(fn, *args), seconds)
            except TimeoutError:
                raise OffloadTimeout(f"{fn.__name__} took longer than {seconds} s") from None
        executor = await self._executors.get()
        started = time.perf_counter()
        healthy = False
        try:
            result = await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(executor, fn, *args), seconds)
            healthy = True
            return result
        except TimeoutError:
            raise OffloadTimeout(f"{fn.__name__} took longer than {seconds} s and was ended") from None
        except BrokenProcessPool:
            raise OffloadCrashed(f"the process died in {fn.__name__}") from None
        except Exception:
            healthy = True
            raise
        finally:
            # Cancelled, timed out or crashed: the process is in the middle of something, so it ends here.
            OFFLOADED_SECONDS.labels("process").observe(time.perf_counter() - started)
            if healthy:
                self._executors.put_nowait(executor)
            else:
                self._end(executor)
                self._add()

    def stop(self) -> None:
        """End all processes."""
        for executor in list(self._alive):
            self._end(executor)

    def _add(self) -> None:
        executor = one_process()
        self._alive.add(executor)
        self._executors.put_nowait(executor)

    def _end(self, executor: ProcessPoolExecutor) -> None:
        self._alive.discard(executor)
        end_process(executor)


def one_process(memory_bytes: int | None = None) -> ProcessPoolExecutor:
    """A process that is started when something is submitted; it gets no more than so much memory of its own."""
    # "spawn": a forked child would inherit locks, sockets and the event loop of a running service.
    return ProcessPoolExecutor(
        1, mp_context=get_context("spawn"), initializer=prepare_child, initargs=(memory_bytes,)
    )


def end_process(executor: ProcessPoolExecutor) -> None:
    """End it at once, whatever it is in the middle of."""
    processes = list((getattr(executor, "_processes", None) or {}).values())
    executor.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.kill()
