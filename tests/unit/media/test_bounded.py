"""A thousand media at once: memory stays within its limit, every one of them has an identity or a reason."""

from __future__ import annotations

import asyncio
from collections import Counter

from schemas.media import MediaResolved
from services.kv.reason import Reason
from services.runtime.topics import MEDIA_RESOLVED
from tests.unit.media.conftest import REPLY_TO, MakeStage, chat, image_part
from tests.unit.media.images import encoded, image
from tests.unit.media.site import Site

REQUESTS, EACH = 20, 50
LIMIT = 1 << 20


async def test_a_thousand_media_at_once(make_stage: MakeStage, site: Site) -> None:
    files = {f"/{number}.png": encoded(image(120, 80, seed=number), compress_level=0) for number in range(100)}
    site.files = files
    size = max(map(len, files.values()))
    stage = await make_stage(identity="content", media_memory_bytes=LIMIT, media_per_host=64)
    peak = 0
    take = stage.app.budget.take

    def watched(more: int) -> None:
        nonlocal peak
        take(more)
        peak = max(peak, stage.app.budget.held)

    stage.app.budget.take = watched  # type: ignore[method-assign]
    parts = [
        [image_part(site.url(f"/{(request * EACH + number) % 100}.png")) for number in range(EACH)]
        for request in range(REQUESTS)
    ]
    await asyncio.gather(*(stage.push({"reply_to": REPLY_TO, "body": chat(*one)}) for one in parts))
    found = Counter(
        item.reason
        for message in stage.harness.sender.messages(MEDIA_RESOLVED.name, MediaResolved)
        for item in message.media
    )
    assert sum(found.values()) == REQUESTS * EACH
    assert set(found) <= {None, Reason.BUDGET_EXCEEDED}
    assert found[None] > REQUESTS
    assert size < peak <= LIMIT
    assert stage.app.budget.held == 0
