"""Periodic jobs and background tasks."""

from __future__ import annotations

import asyncio

import pytest

from services.runtime.jobs import Jobs
from services.runtime.logs import get_logger
from services.runtime.metrics import JOB_FAILURES
from tests.waiting import eventually


def failures(job: str) -> float:
    return float(JOB_FAILURES.labels("test", job)._value.get())


async def test_a_job_that_fails_is_counted_and_runs_again() -> None:
    jobs, calls = Jobs("test", get_logger("test")), 0

    async def job() -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("broken")

    before = failures("beat")
    jobs.every(0.001, job, "beat")
    jobs.start()
    await eventually(lambda: calls >= 3)
    await jobs.stop()
    assert failures("beat") - before == calls


async def test_jobs_added_later_run_too_and_all_end_with_stop() -> None:
    jobs, calls = Jobs("test", get_logger("test")), 0

    async def job() -> None:
        nonlocal calls
        calls += 1

    jobs.start()
    jobs.every(0.001, job, "late")
    task = jobs.spawn(asyncio.Event().wait(), "forever")
    await eventually(lambda: calls)
    await jobs.stop()
    assert task.cancelled()
    seen = calls
    await asyncio.sleep(0.01)
    assert calls == seen


async def test_a_task_that_fails_is_counted() -> None:
    jobs = Jobs("test", get_logger("test"))

    async def task() -> None:
        raise RuntimeError("broken")

    before = failures("test: once")
    jobs.spawn(task(), "once")
    await eventually(lambda: failures("test: once") == before + 1)


def test_a_job_needs_a_period() -> None:
    async def job() -> None: ...

    with pytest.raises(ValueError, match="positive"):
        Jobs("test", get_logger("test")).every(0, job, "never")
