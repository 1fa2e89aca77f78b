"""The layout stage on a real broker: registrations first, then every resolved request comes out expanded."""

from __future__ import annotations

import asyncio
import time
from collections import deque

import orjson

from schemas.expanded import Expanded
from schemas.media import IdentitySource, MediaItem, MediaKind, MediaResolved
from services.kv.reason import Reason
from services.layout.app import build
from services.layout.cards import Cards
from services.runtime.bus import Record
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import EXPANDED, MEDIA_RESOLVED, WORKERS
from tests.unit.layout.golden import MODELS
from tests.unit.layout.workers import contract, proven, worker

CARDS = Cards({"qwen": MODELS / "qwen2.5-vl"}, cache_tokens=100_000)
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


def resolved(number: int) -> MediaResolved:
    """Every second request has an image."""
    now = time.time_ns() // 1_000_000
    item = MediaItem(
        kind=MediaKind.IMAGE, message=0, part=0, identity=number, source=IdentitySource.URL, forward=True,
        height=168, width=224,
    )  # fmt: skip
    parts = [IMAGE, f"question {number}"] if number % 2 else [f"question {number}"]
    body = {"model": "qwen", "messages": [{"role": "user", "content": parts}]}
    return MediaResolved(
        request_id=f"r{number}", model="qwen", deadline_ms=now + 60_000, created_at_ms=now,
        body=orjson.dumps(body).decode(), media=[item] if number % 2 else [],
    )  # fmt: skip


async def test_requests_are_expanded_with_what_the_workers_proved(settings: Settings) -> None:
    reader, stage = Service("reader", settings, health=False), Service("layout", settings, health=False)
    found: deque[Expanded] = deque()
    done = asyncio.Event()

    def keep(record: Record) -> None:
        found.append(Expanded.from_bytes(record.value or b""))
        if len(found) == 20:
            done.set()

    reader.project(EXPANDED, keep)
    build(settings, stage, cards=CARDS)
    await reader.start()
    try:
        await reader.sender.send(WORKERS.name, worker("w1", contract=contract(image=proven())), key="w1")
        await stage.start()
        for number in range(20):
            request = resolved(number)
            await reader.sender.send(MEDIA_RESOLVED.name, request, key=request.key)
        await asyncio.wait_for(done.wait(), 30)
    finally:
        await stage.stop()
        await reader.stop()
    assert sorted(expanded.request_id for expanded in found) == sorted(f"r{number}" for number in range(20))
    for expanded in found:
        number = int(expanded.request_id[1:])
        assert expanded.reason is None, (expanded.reason, expanded.detail)
        assert len(expanded.addresses[16]) == expanded.exact_tokens // 16
        assert [span.identity for span in expanded.spans] == ([number] if number % 2 else [])


async def test_a_worker_that_comes_later_changes_what_is_proven(settings: Settings) -> None:
    reader, stage = Service("reader", settings, health=False), Service("layout", settings, health=False)
    found: asyncio.Queue[Expanded] = asyncio.Queue()
    reader.project(EXPANDED, lambda record: found.put_nowait(Expanded.from_bytes(record.value or b"")))
    build(settings, stage, cards=CARDS)
    await reader.start()
    await stage.start()
    try:
        reasons: list[Reason | None] = []
        for number in range(2, 200, 2):
            request = resolved(number)
            await reader.sender.send(MEDIA_RESOLVED.name, request, key=request.key)
            reasons.append((await asyncio.wait_for(found.get(), 30)).reason)
            if number == 2:
                await reader.sender.send(WORKERS.name, worker("w1"), key="w1")
            if reasons[-1] is None:
                break
        assert reasons[0] is Reason.CONTRACT_MISSING
        assert reasons[-1] is None
    finally:
        await stage.stop()
        await reader.stop()
