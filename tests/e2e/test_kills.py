"""1,000 requests, half with images, while a router, a worker and a media stage are killed with SIGKILL.

What must hold: one final answer to each, no engine runs an attempt twice, one audit row an attempt.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp
import pytest

from tests.e2e.asking import Answer, ask_all, body, picture
from tests.e2e.audited import settled
from tests.e2e.fleet import MODEL, Fleet

REQUESTS = 1000
TOGETHER = 24
SYSTEMS = [f"You are helper number {number}. " + "Be brief, be kind, be right. " * 12 for number in range(8)]


def questions() -> list[tuple[str, dict[str, object]]]:
    """Even ones text, odd ones with one of 16 pictures; every fifth is streamed."""
    pictures = [picture(seed) for seed in range(16)]
    return [
        (
            f"kills-{number}",
            body(
                MODEL.name,
                f"Question {number}: what is it?",
                (pictures[number % 16],) if number % 2 else (),
                system=SYSTEMS[number % 8],
                stream=number % 5 == 0,
            ),
        )
        for number in range(REQUESTS)
    ]


@pytest.mark.timeout(400)
async def test_every_request_gets_one_answer_while_parts_are_killed(fleet: Fleet) -> None:
    for worker_id in ("w1", "w2", "w3"):
        await fleet.worker(worker_id)
    for stage in ("gateway", "layout", "audit"):
        await fleet.stage(stage)
    for replica in (1, 2):
        await fleet.stage("router", replica)
        await fleet.stage("media", replica)
    await fleet.ready()

    asked = questions()
    done = asyncio.Event()

    async def killer(http: aiohttp.ClientSession) -> None:
        await _after(http, fleet, 250)
        fleet.kill("router-1")
        await asyncio.sleep(1)
        await fleet.stage("router", 1)
        await _after(http, fleet, 500)
        fleet.kill("engine-w2")
        fleet.kill("agent-w2")
        await _after(http, fleet, 700)
        fleet.kill("media-2")
        done.set()

    timeout = aiohttp.ClientTimeout(total=150)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http:
        killing = asyncio.ensure_future(killer(http))
        answers = await ask_all(http, fleet.gateway_url, asked, together=TOGETHER)
        await killing
        runs: Counter[str] = Counter()
        for worker_id in ("w1", "w3"):
            async with http.get(f"{fleet.engine_urls[worker_id]}/sim/requests") as seen:
                runs.update((await seen.json())["requests"])

    assert done.is_set()
    _explained(fleet, [answer for answer in answers if answer.finals != 1], "not exactly one final answer")
    _explained(fleet, [answer for answer in answers if answer.status not in (200,)], "not answered")
    assert {request_id: count for request_id, count in runs.items() if count > 1} == {}

    rows = await settled(fleet.folder / "audit.sqlite3", REQUESTS)
    per_attempt = Counter((row.request_id, row.attempt) for row in rows)
    assert {key: count for key, count in per_attempt.items() if count > 1} == {}
    assert {row.request_id for row in rows} == {request_id for request_id, _ in asked}
    for row in rows:
        assert row.status is not None, row


async def _after(http: aiohttp.ClientSession, fleet: Fleet, answers: int) -> None:
    """Wait until so many requests were answered."""
    while await _answered(http, fleet) < answers:  # noqa: ASYNC110 - the engines in other processes are asked
        await asyncio.sleep(0.1)


async def _answered(http: aiohttp.ClientSession, fleet: Fleet) -> int:
    total = 0
    for line in (await fleet.metrics("gateway-1")).splitlines():
        if line.startswith("kvroute_gateway_requests_total{"):
            total += int(float(line.rsplit(" ", 1)[1]))
    return total


def _explained(fleet: Fleet, wrong: list[Answer], what: str) -> None:
    assert not wrong, f"{len(wrong)} requests {what}: " + "\n".join(
        f"{answer.request_id} {answer.status} {answer.text[:200]}" for answer in wrong[:5]
    )
