"""Says of one medium which one it is and how large, in the mode its request asks for."""

from __future__ import annotations

import re
from dataclasses import replace

from schemas.media import IdentitySource, MediaKind
from services.kv.identity import client_identity
from services.kv.reason import Reason
from services.media.brought import Bringer, Brought, Want
from services.media.data_uri import DataUri, is_data_uri, parse_data_uri
from services.media.fetch import Fetcher, Validators
from services.media.header import check_pixels
from services.media.memory import MemoryBudget
from services.media.modes import Mode
from services.media.parts import Found
from services.media.seen import Asking, Seen
from services.media.sizes import RememberedSizes
from services.media.unusable import Unusable
from services.media.url_identity import DroppedParams, validated_identity
from services.media.video_rules import VideoRules
from services.runtime.errors import Refused
from services.runtime.offload import run_in_thread
from services.runtime.settings import Settings

_SMALL = 64 << 10
_FRAMES = re.compile(r"data:video/jpeg\s*[;,]", re.IGNORECASE)
"""Begins frames that a client has sampled itself: base64 images with commas between."""


class Identifier:
    """Identifies media. Raises Refused (the fence; bytes that must travel and can't be had), never Unusable."""

    def __init__(
        self, fetcher: Fetcher, sizes: RememberedSizes, bringer: Bringer, rules: VideoRules, budget: MemoryBudget,
        dropped: DroppedParams, settings: Settings,
    ) -> None:  # fmt: skip
        self._fetcher = fetcher
        self._sizes = sizes
        self._bringer = bringer
        self._rules = rules
        self._budget = budget
        self._dropped = dropped
        self._bytes_only = settings.media_forward == "bytes"
        self._max_bytes = settings.media_max_bytes
        self._max_pixels = settings.media_max_pixels

    async def identify(self, found: Found, asking: Asking, *, over_limit: bool = False) -> Seen:
        """What can be said of one medium. ``over_limit``: the request has too many; only the fence looks at it."""
        if found.url is None:
            return Seen()
        want, why = self._want(found, asking)
        if is_data_uri(found.url):
            seen = await self._inline(found, found.url, want, asking.tenant)
        else:
            seen = await self._remote(found, found.url, want, asking, over_limit)
        if over_limit:
            return replace(seen, reason=Reason.BUDGET_EXCEEDED, detail="too many media (KVROUTE_MEDIA_MAX_ITEMS)")
        if why is not None and seen.reason is None:
            seen = replace(seen, reason=why.reason, detail=str(why))
        if found.uuid and found.reason is not Reason.CLIENT_UUID:
            identity = client_identity(asking.tenant, found.uuid)
            # What the client names is one medium, however it travels: so it always travels the same way.
            return replace(seen, identity=identity, source=IdentitySource.CLIENT, frames=None)
        return seen

    async def close(self) -> None:
        """Give up what is being fetched."""
        await self._bringer.close()
        await self._sizes.close()

    def _want(self, found: Found, asking: Asking) -> tuple[Want, Unusable | None]:
        """What to learn of a medium, and why it can't be exact however much is learnt."""
        if found.kind is MediaKind.IMAGE:
            return Want(found.kind, pixels=asking.mode is Mode.CONTENT), None
        if found.kind is not MediaKind.VIDEO or found.reason is not None:
            return Want(found.kind), None
        if found.url is not None and _FRAMES.match(found.url):
            return Want(found.kind), Unusable(Reason.UNSUPPORTED_MEDIA, "the client has sampled the video itself")
        try:
            # A request's media_io_kwargs speak of all its videos, so only one of them can be handed over as frames.
            frames = asking.videos == 1 and self._rules.hands_frames(asking.model)
            return Want(found.kind, sampling=self._rules.of(asking.model), frames=frames), None
        except Unusable as error:
            return Want(found.kind), error

    async def _inline(self, found: Found, url: str, want: Want, tenant: str) -> Seen:
        """A data: URI: its text is its identity, unless the content is wanted."""
        by_url = Seen(self._dropped.identity(url, tenant), IdentitySource.URL)
        if not found.replaceable or _FRAMES.match(url):
            return by_url
        try:
            with self._budget.hold() as hold:
                hold.grow(len(url))
                parsed = await _parse(url, self._max_bytes)
                kept = await self._bringer.keep(want, parsed.data, parsed.content_type, Validators())
        except Unusable as error:
            if self._bytes_only and error.reason is Reason.BUDGET_EXCEEDED:
                raise _unavailable(found, error) from None
            identity, source = (None, IdentitySource.NONE) if want.content else (by_url.identity, IdentitySource.URL)
            return Seen(identity, source, reason=error.reason, detail=str(error))
        seen = _seen(kept, Mode.URL, None if want.content else by_url.identity)
        # Small bytes that are hashed as text already stand in the body.
        return seen if want.content or seen.claim is not None else replace(seen, url=None)

    async def _remote(self, found: Found, url: str, want: Want, asking: Asking, over_limit: bool) -> Seen:
        identity = None if want.content else self._dropped.identity(url, asking.tenant)
        try:
            if self._bytes_only and (over_limit or not found.replaceable):
                await self._fetcher.check(url)
                raise _cannot_carry(found)
            if not over_limit and (self._bytes_only or want.content):
                kept = await self._bringer.fetch(url, self._dropped.key(url, asking.tenant), want)
                return _seen(kept, asking.mode, identity)
            await self._fetcher.check(url)
            if found.kind is not MediaKind.IMAGE or over_limit:
                return Seen(identity, _source(identity))
            return await self._by_url(url, asking.mode, identity)
        except Unusable as error:
            if self._bytes_only:
                raise _unavailable(found, error) from None
            return Seen(identity, _source(identity), reason=error.reason, detail=str(error))

    async def _by_url(self, url: str, mode: Mode, identity: int | None) -> Seen:
        """The engine fetches: only the size is needed, and for ``validated`` what the server says today."""
        measured = await (self._sizes.of(url) if mode is Mode.URL else self._fetcher.size(url))
        check_pixels(measured.size, self._max_pixels)
        seen = Seen(identity, _source(identity), measured.size, measured.size_bytes)
        return seen if mode is Mode.URL else _validated(seen, measured.validators)


def _seen(kept: Brought, mode: Mode, by_url: int | None) -> Seen:
    identity, source = kept.identity, IdentitySource.CONTENT
    if by_url is not None:
        identity, source = by_url, IdentitySource.URL
    seen = Seen(
        identity, source if identity is not None else IdentitySource.NONE, kept.size, kept.size_bytes,
        kept.claim, kept.url, kept.reason, kept.detail, kept.video, kept.frames,
    )  # fmt: skip
    return _validated(seen, kept.validators) if mode is Mode.VALIDATED and by_url is not None else seen


async def _parse(url: str, max_bytes: int) -> DataUri:
    if len(url) > _SMALL:
        return await run_in_thread(parse_data_uri, url, max_bytes)
    return parse_data_uri(url, max_bytes)


def _validated(seen: Seen, validators: Validators) -> Seen:
    if seen.identity is None:
        return seen
    identity = validated_identity(seen.identity, validators)
    if validators or seen.reason is not None:
        return replace(seen, identity=identity)
    return replace(
        seen, identity=identity, reason=Reason.IDENTITY_NOT_FORWARDABLE,
        detail="the server sends neither ETag nor Last-Modified nor a length",
    )  # fmt: skip


def _source(identity: int | None) -> IdentitySource:
    return IdentitySource.NONE if identity is None else IdentitySource.URL


def _unavailable(found: Found, error: Unusable) -> Refused:
    """With media_forward=bytes nothing may be left for the engine to fetch."""
    if error.reason is Reason.BUDGET_EXCEEDED:
        return Refused(503, f"{found.where}: {error}", type="server_error", code="media_busy")
    return Refused(400, f"{found.where}: {error}", code="media_unavailable")


def _cannot_carry(found: Found) -> Refused:
    why = "carries a URL whose bytes can't travel in its place; send it inline"
    return Refused(400, f"{found.where} {why}", code="media_unavailable")
