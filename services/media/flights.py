"""Shares work under way: who asks for the same thing while it is being fetched waits for that one fetch."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Flights(Generic[K, V]):
    """At most one task a key. Results are not kept: that is a cache's business."""

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[V]] = {}
        self._waiting: Counter[asyncio.Task[V]] = Counter()

    async def share(self, key: K, make: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The result of ``make``, or of the one under way.

        A waiter that is cancelled leaves the others theirs; when the last one is, the work is given up.
        """
        task = self._tasks.get(key)
        if task is None:
            task = asyncio.create_task(make())
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._landed(key, done))
        self._waiting[task] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting[task] -= 1
            if not self._waiting[task]:
                del self._waiting[task]
                if not task.done():
                    self._leave(key, task)

    def __len__(self) -> int:
        """Tasks under way."""
        return len(self._tasks)

    async def close(self) -> None:
        """Cancel what is under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _leave(self, key: K, task: asyncio.Task[V]) -> None:
        """Nobody waits: whoever asks next begins anew."""
        if self._tasks.get(key) is task:
            del self._tasks[key]
        task.cancel()

    def _landed(self, key: K, task: asyncio.Task[V]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled():
            task.exception()  # seen, even if every waiter has gone
