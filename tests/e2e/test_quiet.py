"""A quiet fleet: for every request with no other of its prefix in flight, predicted = realised."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests.e2e.asking import Answer, ask, body, picture
from tests.e2e.audited import settled
from tests.e2e.fleet import MODEL, Fleet

TALKS = 12
TURNS = 6
SETTLE_SECONDS = 0.6
"""After an answer: its blocks' events (coalesced for 20 ms) are in every router's index."""


@pytest.mark.timeout(240)
async def test_predicted_is_realised(fleet: Fleet) -> None:
    for worker_id in ("w1", "w2", "w3"):
        await fleet.worker(worker_id)
    for stage in ("gateway", "media", "layout", "router", "audit"):
        await fleet.stage(stage)
    await fleet.ready()

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
        talks = await asyncio.gather(*(_talk(http, fleet, talk) for talk in range(TALKS)))

    answers = [answer for talk in talks for answer in talk]
    assert [answer for answer in answers if answer.status != 200] == []
    rows = {row.request_id: row for row in await settled(fleet.folder / "audit.sqlite3", len(answers))}
    wrong = [
        row for row in (rows[answer.request_id] for answer in answers) if row.predicted_tokens != row.cached_tokens
    ]
    assert wrong == []
    assert all(row.mode == "exact" for row in rows.values())
    later = [rows[answer.request_id] for talk in talks for answer in talk[1:]]
    reusing = [row for row in later if row.predicted_tokens > 0]
    assert len(reusing) >= 0.8 * len(later), "a later turn leaves its worker only when that one is busy"


async def _talk(http: aiohttp.ClientSession, fleet: Fleet, talk: int) -> list[Answer]:
    """One person: a prefix of their own, every second one with a picture in each turn, one turn after another."""
    system = f"Person {talk} speaks. " + "They like short answers and plain words. " * (4 + talk)
    images = (picture(1000 + talk, 112 + 28 * (talk % 3), 224),) if talk % 2 else ()
    answers = []
    for turn in range(TURNS):
        payload = body(MODEL.name, f"Turn {turn}, question {turn * talk}?", images, system=system)
        answers.append(await ask(http, fleet.gateway_url, f"quiet-{talk}-{turn}", payload))
        await asyncio.sleep(SETTLE_SECONDS)
    return answers
