"""One request through the media stage: its body checked, its media identified, its body put where it can travel."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import orjson

from schemas.media import MediaItem, MediaKind, MediaResolved
from schemas.request import Claim, Envelope, Request
from services.media.identify import Identifier
from services.media.intake import parse_body
from services.media.modes import Mode, Modes
from services.media.parts import Found, find_media, set_url
from services.media.seen import Asking, Scope, item_of
from services.runtime.blobs import BlobGone, Blobs
from services.runtime.errors import Refused
from services.runtime.metrics import MEDIA_ITEMS
from services.runtime.offload import run_alone, run_in_thread
from services.runtime.settings import Settings
from services.runtime.topics import RECORD_LIMIT_BYTES

OFF_LOOP_BYTES = 64 << 10
"""Of the record or body: above, walking through it takes more than a few milliseconds."""

_AT_ONCE = 16
_MOST_MEDIA = 4
"""Times KVROUTE_MEDIA_MAX_ITEMS: above the setting media are not looked at, above this the request is refused."""


class Resolution:
    """Resolves requests. Raises Refused, or Transient when the blob store fails."""

    def __init__(self, identifier: Identifier, blobs: Blobs, modes: Modes, settings: Settings) -> None:
        self._identifier = identifier
        self._blobs = blobs
        self._modes = modes
        self._trust_uuid = settings.media_trust_uuid
        self._max_items = settings.media_max_items
        self._max_body_bytes = settings.gateway_max_body_bytes
        self._inline_body_bytes = settings.blob_body_bytes
        key = settings.identity_key
        self._key = key.get_secret_value().encode() if key is not None else None

    async def body_of(self, request: Request) -> dict[str, Any]:
        """The OpenAI body, from the record or from its claim. Raises Refused when the claim can't be honoured."""
        claim = request.body_claim
        if claim is None:
            return request.body
        if claim.size > self._max_body_bytes:
            raise Refused(
                413, f"the body has {claim.size} bytes, the limit is {self._max_body_bytes}", code="body_too_large"
            )
        try:
            raw = await self._blobs.get(claim)
        except BlobGone as error:
            raise Refused(503, str(error), type="server_error", code="body_gone") from None
        return await run_alone(parse_body, raw)

    async def resolve(
        self,
        request: Request,
        envelope: Envelope,
        body: dict[str, Any],
        timings_ms: dict[str, float],
        *,
        large: bool = False,
    ) -> MediaResolved:
        """The request as the next stage gets it. Changes ``body``: uuids out, bytes in.

        ``large``: the body may have many parts, and is walked through beside the event loop.
        """
        most = self._max_items * _MOST_MEDIA
        look = partial(find_media, body, trust_uuid=self._trust_uuid, max_items=most)
        found = await run_in_thread(look) if large else look()
        mode = self._modes.of(envelope.model, request.identity)
        items = await self._identify_all(found, body, mode, envelope)
        if envelope.cache_salt and "cache_salt" not in body:
            body["cache_salt"] = envelope.cache_salt
        raw = await self._encode(body, large=large)
        text, claim = await self._place_body(raw)
        carried = {name: getattr(envelope, name) for name in Envelope.model_fields if name != "timings_ms"}
        return MediaResolved(**carried, timings_ms=timings_ms, body=text, body_claim=claim, media=items)

    async def _identify_all(
        self, found: list[Found], body: dict[str, Any], mode: Mode, envelope: Envelope
    ) -> list[MediaItem]:
        if not found:
            return []
        scope = Scope(envelope.tenant, envelope.cache_salt, self._key)
        videos = sum(medium.kind is MediaKind.VIDEO for medium in found)
        asking = Asking(mode, envelope.tenant, envelope.model, videos)
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(number: int, medium: Found) -> MediaItem:
            async with gate:
                over = number >= self._max_items
                seen = await self._identifier.identify(medium, asking, over_limit=over)
            if seen.url is not None:
                set_url(body, medium, seen.url)
            item = item_of(medium, seen, scope)
            MEDIA_ITEMS.labels(item.kind.value, item.source.value, item.reason.value if item.reason else "").inc()
            return item

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(number, medium)) for number, medium in enumerate(found)]
        except BaseExceptionGroup as group_error:
            raise _most_telling(group_error) from None
        return [task.result() for task in tasks]

    async def _encode(self, body: dict[str, Any], *, large: bool) -> bytes:
        try:
            return await run_alone(orjson.dumps, body) if large else orjson.dumps(body)
        except (TypeError, RecursionError):
            raise Refused(400, "the body nests deeper than 254 levels", code="too_deep") from None

    async def _place_body(self, raw: bytes) -> tuple[str | None, Claim | None]:
        """In the record if it fits, quoted as it will be; else as a claim."""
        quoted = len(raw) + raw.count(b'"') + raw.count(b"\\")
        if len(raw) > self._inline_body_bytes or quoted > RECORD_LIMIT_BYTES // 2:
            return None, await self._blobs.put(raw, "application/json")
        return raw.decode(), None


def _most_telling(error: BaseExceptionGroup[BaseException]) -> BaseException:
    """A refusal if there is one (it is final), else the first error."""
    refused = error.subgroup(Refused)
    first: BaseException = refused if refused is not None else error
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
