"""/healthz, /readyz, /metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from services.runtime.health import HealthServer


class Doctor:
    """A server whose reasons are set by the test."""

    def __init__(self) -> None:
        self.sick: list[str] = []
        self.unready: list[str] = []
        self.server = HealthServer("127.0.0.1", 0, sick=lambda: self.sick, unready=lambda: self.unready)

    async def get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.server.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def doctor() -> AsyncIterator[Doctor]:
    doctor = Doctor()
    await doctor.server.start()
    yield doctor
    await doctor.server.stop()


async def test_well_and_ready(doctor: Doctor) -> None:
    assert await doctor.get("/healthz") == (200, '{"status":"ok"}')
    assert await doctor.get("/readyz") == (200, '{"status":"ok"}')


async def test_reasons_are_told(doctor: Doctor) -> None:
    doctor.unready = ["projection of kvroute.workers.v1 is catching up"]
    assert (await doctor.get("/healthz"))[0] == 200
    status, body = await doctor.get("/readyz")
    assert status == 503
    assert "projection of kvroute.workers.v1 is catching up" in body
    doctor.sick = ["stage gives up"]
    assert (await doctor.get("/healthz"))[0] == 503


async def test_metrics(doctor: Doctor) -> None:
    status, body = await doctor.get("/metrics")
    assert status == 200
    assert "# HELP kvroute_records_handled_total" in body


async def test_the_port_is_free_again_after_stop(doctor: Doctor) -> None:
    await doctor.server.stop()
    assert doctor.server.port == 0
    await doctor.server.stop()
