"""The media stage itself: what url identity fetches of a picture, and what a thousand media at once hold in memory."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import structlog

from benchmarks.measure import Row, Spread
from benchmarks.media import picture
from schemas.media import MediaResolved
from services.media.app import MediaApp, build
from services.runtime.settings import Settings
from services.runtime.topics import MEDIA_RESOLVED, REQUESTS
from tests.fakes import Harness
from tests.unit.media.site import Site

PICTURES = 50
AT_ONCE, OF_A_REQUEST = 1000, 50
HEADER_BYTES = 64 << 10
"""More than this for a size would be a download."""


def rows() -> Iterator[Row]:
    """Bytes and requests of url identity; time and memory of a thousand pictures by content."""
    # Without a stage's own set-up structlog writes to stdout, where the numbers go.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield from asyncio.run(_url_identity())
    yield from asyncio.run(_thousand())


async def _url_identity() -> list[Row]:
    """Raises RuntimeError when a picture took more than one request or was downloaded."""
    data = picture()
    async with _stage(identity="url") as (harness, _, site):
        site.files = {f"/{number}.jpg": data for number in range(PICTURES)}
        for path in site.files:
            await _ask(harness, [site.url(path)])
        resolved = _resolved(harness)
        if len(resolved) != PICTURES or any(item.reason or item.height != 1080 for item in resolved):
            raise RuntimeError("url identity did not find the size of every picture")
        if site.total != PICTURES or site.sent_bytes > PICTURES * HEADER_BYTES:
            raise RuntimeError(f"{PICTURES} pictures took {site.total} requests and {site.sent_bytes} bytes")
        case = "a 1080p JPEG by url identity"
        return [
            Row(f"requests for {case}", "", Spread.of([site.total / PICTURES])),
            Row(
                f"bytes of {case}", "B", Spread.of([site.sent_bytes / PICTURES]), Spread.of([float(len(data))]),
                "the whole file",
            ),
        ]  # fmt: skip


async def _thousand() -> list[Row]:
    """Raises RuntimeError when not every picture got an identity."""
    data = picture()
    async with _stage(identity="content", media_per_host=64) as (harness, app, site):
        # A byte after the end of a JPEG changes no pixel, and every file is another medium to the cache.
        site.files = {f"/{number}.jpg": data + number.to_bytes(2, "big") for number in range(AT_ONCE)}
        urls = [site.url(path) for path in site.files]
        peak, take = 0, app.budget.take

        def watched(size: int) -> None:
            nonlocal peak
            take(size)
            peak = max(peak, app.budget.held)

        app.budget.take = watched  # type: ignore[method-assign]
        start = time.perf_counter()
        chunks = [urls[first : first + OF_A_REQUEST] for first in range(0, AT_ONCE, OF_A_REQUEST)]
        await asyncio.gather(*(_ask(harness, chunk) for chunk in chunks))
        spent = time.perf_counter() - start
        known = sum(item.reason is None for item in _resolved(harness))
        if known != AT_ONCE or app.budget.held:
            raise RuntimeError(f"{known} of {AT_ONCE} pictures have an identity, {app.budget.held} bytes are held")
        case = f"{AT_ONCE:,} 1080p JPEGs at once by content identity"
        limit = Spread.of([harness.settings.media_memory_bytes / 2**20])
        return [
            Row(case, "1/s", Spread.of([AT_ONCE / spent])),
            Row(f"memory held by {case}", "MiB", Spread.of([peak / 2**20]), limit, "KVROUTE_MEDIA_MEMORY_BYTES"),
        ]


@asynccontextmanager
async def _stage(**settings: Any) -> AsyncIterator[tuple[Harness, MediaApp, Site]]:
    """The stage on a service in memory, and a site on this machine to fetch from."""
    with tempfile.TemporaryDirectory(prefix="kvroute-bench-") as folder:
        own: dict[str, Any] = {"data_dir": Path(folder), "media_allow_private": True, "media_max_items": OF_A_REQUEST}
        harness = Harness("media", Settings(**(own | settings)))
        app = build(harness.settings, harness)
        await harness.start()
        site = await Site(content_types={}).start()
        try:
            yield harness, app, site
        finally:
            await site.stop()
            await harness.stop()


async def _ask(harness: Harness, urls: list[str]) -> None:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    body = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    await harness.push(REQUESTS, orjson.dumps({"body": body}), key="k")


def _resolved(harness: Harness) -> list[Any]:
    return [item for message in harness.sender.messages(MEDIA_RESOLVED.name, MediaResolved) for item in message.media]
