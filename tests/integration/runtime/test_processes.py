"""Stages as processes: killed, asked to stop, asked how they are."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import aiohttp
import pytest

from services.runtime.broker_process import free_ports
from services.runtime.sender import KafkaSender
from services.runtime.settings import Settings
from services.runtime.topics import MEDIA_RESOLVED, REQUESTS
from tests.integration.runtime.conftest import MakeService
from tests.waiting import PATIENCE_SECONDS, Collected, eventually

StartStage = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
async def start_stage(settings: Settings) -> AsyncIterator[StartStage]:
    """Start copying stages; those that still run are killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(milliseconds: int, health_port: int = 0) -> subprocess.Popen[bytes]:
        arguments = [settings.kafka_bootstrap, settings.kafka_profile, settings.topic_prefix]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.runtime.stage", *arguments, str(milliseconds), str(health_port)],
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


async def copied(make_service: MakeService) -> Collected:
    """Everything that arrives in ``media-resolved``."""
    out = Collected()
    reader = make_service("reader")
    reader.project(MEDIA_RESOLVED, out.add)
    await reader.start()
    return out


async def test_a_killed_stage_loses_nothing_and_repeats_little(
    make_service: MakeService, sender: KafkaSender, start_stage: StartStage
) -> None:
    out = await copied(make_service)
    first = start_stage(20)
    await asyncio.gather(*(sender.send_raw(REQUESTS.name, b"%d" % n, key=b"k%d" % n) for n in range(200)))
    await out.count(60)
    first.kill()
    first.wait()
    start_stage(0)
    await eventually(lambda: len(set(out.values)) == 200)
    twice = [value for value, times in Counter(out.values).items() if times > 1]
    # Commits come every 200 ms: what 8 at a time can finish meanwhile, and what was in flight.
    assert len(twice) <= 150
    assert max(Counter(out.values).values()) <= 2


async def test_sigterm_finishes_what_is_in_flight_and_commits(
    make_service: MakeService, sender: KafkaSender, start_stage: StartStage
) -> None:
    out = await copied(make_service)
    first = start_stage(300)
    await asyncio.gather(*(sender.send_raw(REQUESTS.name, b"%d" % n, key=b"k%d" % n) for n in range(40)))
    await out.count(8)
    first.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(first.wait, PATIENCE_SECONDS) == 0
    start_stage(0)
    await eventually(lambda: len(set(out.values)) == 40)
    assert len(out.values) == 40


async def test_health_ready_and_metrics_of_a_stage(start_stage: StartStage) -> None:
    port = free_ports(1)[0]
    start_stage(0, port)

    async def get(path: str) -> tuple[int, str]:
        with suppress(aiohttp.ClientError):
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, await answer.text()
        return 0, ""

    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_SECONDS
    while (await get("/readyz"))[0] != 200:
        assert loop.time() < deadline, await get("/readyz")
        await asyncio.sleep(0.05)
    assert (await get("/healthz"))[0] == 200
    while "kvroute_stage_ready" not in (text := (await get("/metrics"))[1]) or 'ready{stage="media"} 1.0' not in text:
        assert loop.time() < deadline
        await asyncio.sleep(0.05)
    assert "kvroute_loop_lag_seconds" in text
