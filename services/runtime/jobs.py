"""Periodic jobs and background tasks of a stage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from services.runtime.metrics import JOB_FAILURES


class Jobs:
    """Runs jobs by the clock and tasks until the end. What they raise is counted and logged, never lost."""

    def __init__(self, stage: str, log: structlog.stdlib.BoundLogger) -> None:
        self._stage = stage
        self._log = log
        self._periodic: list[tuple[float, Callable[[], Awaitable[None]], str]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._started = False

    def every(self, seconds: float, job: Callable[[], Awaitable[None]], name: str) -> None:
        """Run ``job`` every ``seconds``, from the start or from now on."""
        if seconds <= 0:
            raise ValueError(f"job {name} is to run every {seconds} s, expected a positive number")
        self._periodic.append((seconds, job, name))
        if self._started:
            self.spawn(self._repeat(seconds, job, name), name)

    def spawn(self, coro: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a task until it ends or the service stops."""
        task = asyncio.create_task(coro, name=f"{self._stage}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def start(self) -> None:
        """Start the periodic jobs."""
        self._started = True
        for seconds, job, name in self._periodic:
            self.spawn(self._repeat(seconds, job, name), name)

    async def stop(self) -> None:
        """Cancel everything and wait until it has ended."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    async def _repeat(self, seconds: float, job: Callable[[], Awaitable[None]], name: str) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            try:
                await job()
            except Exception as error:
                JOB_FAILURES.labels(self._stage, name).inc()
                self._log.warning("job failed", job=name, error=f"{type(error).__name__}: {error}")
            # Beats are kept: a slow run does not shift the next ones, missed ones are not made up for.
            due += seconds
            now = loop.time()
            if due < now:
                due = now
            await asyncio.sleep(due - now)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            JOB_FAILURES.labels(self._stage, task.get_name()).inc()
            self._log.error("task failed", task=task.get_name(), exc_info=error)
