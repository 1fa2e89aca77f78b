"""What was learnt of one medium, before scope. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from schemas.media import IdentitySource, MediaItem
from schemas.request import Claim
from services.kv.identity import scoped, url_identity
from services.kv.reason import Reason
from services.media.data_uri import is_data_uri
from services.media.header import ImageSize
from services.media.modes import Mode
from services.media.parts import Found
from services.media.video import DecodedVideo

_PATH_LIMIT = 1024
_DETAIL_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Seen:
    """Identity, size, and the bytes if they travel: by claim, or as ``url`` in the body's place."""

    identity: int | None = None
    source: IdentitySource = IdentitySource.NONE
    size: ImageSize | None = None
    size_bytes: int | None = None
    claim: Claim | None = None
    url: str | None = None
    reason: Reason | None = None
    detail: str | None = None
    video: DecodedVideo | None = None
    frames: Claim | None = None


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks what: the mode of identity, the tenant, the model that the medium is for.

    ``videos``: how many the request has.
    """

    mode: Mode
    tenant: str = ""
    model: str = ""
    videos: int = 0


@dataclass(frozen=True, slots=True)
class Scope:
    """Within which an identity counts."""

    tenant: str = ""
    salt: str | None = None
    key: bytes | None = None


def item_of(found: Found, seen: Seen, scope: Scope) -> MediaItem:
    """The item as later stages get it: identity scoped, forwarded only when nothing speaks against exactness."""
    identity = None if seen.identity is None else scoped(seen.identity, scope.tenant, scope.salt, scope.key)
    reason, detail = (found.reason, found.detail) if found.reason is not None else (seen.reason, seen.detail)
    host, path = _place(found.url)
    return MediaItem(
        kind=found.kind,
        message=found.message,
        part=found.part,
        identity=identity,
        source=seen.source,
        forward=identity is not None and reason is None,
        **_shape(seen),
        size_bytes=seen.size_bytes,
        claim=seen.claim,
        frames_claim=seen.frames,
        reason=reason,
        detail=detail[:_DETAIL_LIMIT] if detail else None,
        host=host,
        path=path,
        url_hash=None if found.url is None else url_identity(found.url),
    )


def _shape(seen: Seen) -> dict[str, Any]:
    """What decoding or the header said of it."""
    if (video := seen.video) is not None:
        return {
            "width": video.width, "height": video.height, "format": video.container.name,
            "frames": len(video.indices), "frame_indices": list(video.indices), "total_frames": video.frames,
            "fps": video.fps, "duration": video.duration,
        }  # fmt: skip
    if (size := seen.size) is not None:
        return {"width": size.width, "height": size.height, "format": size.format}
    return {}


def _place(url: str | None) -> tuple[str | None, str | None]:
    """Host and path for the audit: no query, no user info, no payload."""
    if url is None:
        return None, None
    if is_data_uri(url):
        return None, "data:"
    try:
        split = urlsplit(url)
        return split.hostname, split.path[:_PATH_LIMIT] or None
    except ValueError:
        return None, None
