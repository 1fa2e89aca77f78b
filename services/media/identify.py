"""Says of one medium which one it is and how large, in the mode its request asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from schemas.media import IdentitySource, MediaKind
from schemas.request import Claim
from services.kv.identity import client_identity
from services.kv.reason import Reason
from services.media.data_uri import EMPTY, DataUri, data_uri, is_data_uri, parse_data_uri
from services.media.fetch import Fetcher, Validators
from services.media.flights import Flights
from services.media.header import ImageSize, Need, check_pixels, looks_complete, measure
from services.media.memory import MemoryBudget
from services.media.modes import Mode
from services.media.parts import Found
from services.media.pixels import Decoded
from services.media.seen import Seen
from services.media.sizes import RememberedSizes
from services.media.unusable import Unusable
from services.media.url_identity import DroppedParams, validated_identity
from services.runtime.blobs import Blobs
from services.runtime.errors import Refused
from services.runtime.offload import run_in_thread
from services.runtime.settings import Settings

_SMALL = 64 << 10
_CONTENT_TYPES = {"JPEG": "image/jpeg", "MPO": "image/jpeg", "TIFF": "image/tiff"}
Decode = Callable[[bytes, int], Awaitable[Decoded]]


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A medium that was fetched: what its bytes say, and where they are kept."""

    content_identity: int | None
    size: ImageSize | None
    size_bytes: int
    validators: Validators
    claim: Claim | None
    url: str | None
    reason: Reason | None
    detail: str | None


class Identifier:
    """Identifies media. Raises Refused (the fence; bytes that must travel and can't be had), never Unusable."""

    def __init__(
        self, fetcher: Fetcher, sizes: RememberedSizes, blobs: Blobs, decode: Decode, budget: MemoryBudget,
        dropped: DroppedParams, settings: Settings,
    ) -> None:  # fmt: skip
        self._fetcher = fetcher
        self._sizes = sizes
        self._blobs = blobs
        self._decode = decode
        self._budget = budget
        self._dropped = dropped
        self._bytes_only = settings.media_forward == "bytes"
        self._inline_bytes = settings.blob_inline_bytes
        self._max_bytes = settings.media_max_bytes
        self._max_pixels = settings.media_max_pixels
        self._flights: Flights[tuple[str, MediaKind, Mode], _Bytes] = Flights()

    async def identify(self, found: Found, mode: Mode, tenant: str, *, over_limit: bool = False) -> Seen:
        """What can be said of one medium. ``over_limit``: the request has too many; only the fence looks at it."""
        if found.url is None:
            return Seen()
        if is_data_uri(found.url):
            seen = await self._inline(found, found.url, mode, tenant)
        else:
            seen = await self._remote(found, found.url, mode, tenant, over_limit)
        if over_limit:
            return replace(seen, reason=Reason.BUDGET_EXCEEDED, detail="too many media (KVROUTE_MEDIA_MAX_ITEMS)")
        if found.uuid and found.reason is not Reason.CLIENT_UUID:
            return replace(seen, identity=client_identity(tenant, found.uuid), source=IdentitySource.CLIENT)
        return seen

    async def close(self) -> None:
        """Give up what is being fetched."""
        await self._flights.close()
        await self._sizes.close()

    async def _inline(self, found: Found, url: str, mode: Mode, tenant: str) -> Seen:
        """A data: URI: its text is its identity, unless the pixels are wanted."""
        by_url = Seen(self._dropped.identity(url, tenant), IdentitySource.URL)
        if not found.replaceable:
            return by_url
        content = mode is Mode.CONTENT and found.kind is MediaKind.IMAGE
        try:
            with self._budget.hold() as hold:
                hold.grow(len(url))
                parsed = await _parse(url, self._max_bytes)
                kept = await self._keep(found.kind, content, parsed.data, parsed.content_type, Validators())
        except Unusable as error:
            if self._bytes_only and error.reason is Reason.BUDGET_EXCEEDED:
                raise _unavailable(found, error) from None
            identity, source = (None, IdentitySource.NONE) if content else (by_url.identity, IdentitySource.URL)
            return Seen(identity, source, reason=error.reason, detail=str(error))
        seen = self._seen(kept, Mode.URL, None if content else by_url.identity)
        # Small bytes that are hashed as text already stand in the body.
        return seen if content or seen.claim is not None else replace(seen, url=None)

    async def _remote(self, found: Found, url: str, mode: Mode, tenant: str, over_limit: bool) -> Seen:
        image = found.kind is MediaKind.IMAGE
        content = image and mode is Mode.CONTENT
        identity = None if content else self._dropped.identity(url, tenant)
        try:
            if self._bytes_only and (over_limit or not found.replaceable):
                await self._fetcher.check(url)
                raise _cannot_carry(found)
            if not over_limit and (self._bytes_only or content):
                kept = await self._flights.share((url, found.kind, mode), lambda: self._bring(found.kind, content, url))
                return self._seen(kept, mode, identity)
            await self._fetcher.check(url)
            if not image or over_limit:
                return Seen(identity, _source(identity))
            return await self._by_url(url, mode, identity)
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

    async def _bring(self, kind: MediaKind, content: bool, url: str) -> _Bytes:
        with self._budget.hold() as hold:
            fetched = await self._fetcher.whole(url, hold)
            return await self._keep(kind, content, fetched.data, fetched.content_type, fetched.validators)

    async def _keep(
        self, kind: MediaKind, content: bool, data: bytes, content_type: str, validators: Validators
    ) -> _Bytes:
        """Look at bytes and put them where they can travel. Bytes that are no image still travel: the engine judges."""
        identity, size, reason, detail = None, None, None, None
        try:
            if content:
                decoded = await self._decode(data, self._max_pixels)
                identity, size = decoded.identity, decoded.size
            elif kind is MediaKind.IMAGE:
                size = await run_in_thread(_measure_whole, data, self._max_pixels)
        except Unusable as error:
            reason, detail = error.reason, str(error)
        if size is not None:
            content_type = _CONTENT_TYPES.get(size.format, f"image/{size.format.lower()}")
        if len(data) > self._inline_bytes:
            claim = await self._blobs.put(data, content_type)
            return _Bytes(identity, size, len(data), validators, claim, EMPTY, reason, detail)
        inline = data_uri(content_type, data)
        return _Bytes(identity, size, len(data), validators, None, inline, reason, detail)

    def _seen(self, kept: _Bytes, mode: Mode, by_url: int | None) -> Seen:
        identity, source = kept.content_identity, IdentitySource.CONTENT
        if by_url is not None:
            identity, source = by_url, IdentitySource.URL
        seen = Seen(
            identity, source if identity is not None else IdentitySource.NONE, kept.size, kept.size_bytes,
            kept.claim, kept.url, kept.reason, kept.detail,
        )  # fmt: skip
        return _validated(seen, kept.validators) if mode is Mode.VALIDATED else seen


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


def _measure_whole(data: bytes, max_pixels: int) -> ImageSize:
    size = measure(data, total=len(data))
    if isinstance(size, Need) or not looks_complete(data, size.format):
        raise Unusable(Reason.DECODE_FAILED, "the image is truncated")
    check_pixels(size, max_pixels)
    return size


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
