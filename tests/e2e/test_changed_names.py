"""Engines that call media by names of their own, and get videos as frames, behind the whole pipeline."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import aiohttp
import pytest

from tests.e2e.asking import Answer, ask, body, picture
from tests.e2e.audited import settled
from tests.e2e.fleet import MODEL, Fleet
from tests.unit.media.clips import clip

SETTLE_SECONDS = 1.0
CHANGED = json.dumps({"image": {"rgba_background_color": [0, 0, 0]}})


def filmed(data: bytes, text: str) -> dict[str, Any]:
    url = "data:video/mp4;base64," + base64.b64encode(data).decode()
    content = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": text}]
    return {"model": MODEL.name, "messages": [{"role": "user", "content": content}], "max_tokens": 4}


@pytest.mark.timeout(240)
async def test_what_is_predicted_is_realised_whatever_the_engine_calls_it(fleet: Fleet) -> None:
    fleet.set(KVROUTE_VIDEO_FORWARD_FRAMES=MODEL.name, KVROUTE_IDENTITY="content")
    for worker_id in ("w1", "w2"):
        await fleet.worker(worker_id, "--trust-request-mm-kwargs", "--media-io-kwargs", CHANGED)
    for stage in ("gateway", "media", "layout", "router", "audit"):
        await fleet.stage(stage)
    await fleet.ready()

    text = "What do you see? " * 12
    alike = [body(MODEL.name, text, (picture(seed),)) for seed in range(8)]
    videos = [filmed(clip(12, height=112, width=168, seed=seed), text) for seed in range(2)]
    asked = [*alike, *videos, filmed(clip(20, height=112, width=168, seed=3), text)]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:

        async def at_once(name: str) -> list[Answer]:
            found = await asyncio.gather(
                *(ask(http, fleet.gateway_url, f"{name}-{number}", payload) for number, payload in enumerate(asked))
            )
            await asyncio.sleep(SETTLE_SECONDS)
            return found

        first, again = await at_once("first"), await at_once("again")
        last = [await ask(http, fleet.gateway_url, "other", body(MODEL.name, text, (picture(99),)))]
    answers = [*first, *again, *last]
    assert [answer for answer in answers if answer.status != 200] == []
    rows = {row.request_id: row for row in await settled(fleet.folder / "audit.sqlite3", len(answers))}
    assert {row.mode for row in rows.values()} == {"exact"}
    repeated = [rows[answer.request_id] for answer in again]
    assert [row for row in repeated if row.predicted_tokens != row.cached_tokens] == []
    # With so many at once some are better off with the worker that is free.
    hits = [row.predicted_tokens for row in repeated if row.predicted_tokens]
    assert len(hits) > len(repeated) / 2
    assert rows["other"].predicted_tokens == rows["other"].cached_tokens, "another picture of the same size"
    assert rows["other"].predicted_tokens < min(hits)
    for worker_id in ("w1", "w2"):
        assert "videos are not handed over as frames" not in fleet.log_of(f"agent-{worker_id}")
