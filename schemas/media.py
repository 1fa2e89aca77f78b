"""``kvroute.media-resolved.v1``: the request with every image and video identified."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from schemas.request import Claim, Envelope
from schemas.types import Hex64, Int64, Part
from services.kv.reason import Reason


class MediaKind(StrEnum):
    """What a content part carries."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"
    OTHER = "other"


class IdentitySource(StrEnum):
    """Where an identity comes from."""

    URL = "url"
    CONTENT = "content"
    CLIENT = "client"
    NONE = "none"


class MediaItem(Part):
    """One image, video or audio part, in prompt order.

    ``identity`` is already scoped by tenant and salt: it is the number used in addresses and, as
    ``%016x`` + 48 zeros, in the engine.
    """

    kind: MediaKind
    message: Int64 = Field(ge=0, description="index in body.messages")
    part: Int64 = Field(ge=0, description="index in that message's content list")
    identity: Hex64 | None = None
    source: IdentitySource = IdentitySource.NONE
    forward: bool = Field(default=False, description="the identity may travel to the engine")
    width: Int64 | None = Field(default=None, description="pixels, after EXIF transpose")
    height: Int64 | None = Field(default=None, description="pixels, after EXIF transpose")
    size_bytes: Int64 | None = None
    format: str | None = None
    frames: Int64 | None = Field(default=None, description="sampled frames of a video")
    total_frames: Int64 | None = None
    fps: float | None = None
    duration: float | None = Field(default=None, description="seconds")
    frame_indices: list[Int64] | None = None
    claim: Claim | None = Field(default=None, description="the very bytes that were hashed")
    frames_claim: Claim | None = Field(
        default=None, description="of a video: the frames that were hashed, without loss, for engines that take frames"
    )
    reason: Reason | None = Field(default=None, description="why this item is not exact")
    detail: str | None = Field(default=None, max_length=300, description="for people; no URL query, no payload")
    host: str | None = None
    path: str | None = Field(default=None, max_length=1024)
    url_hash: Hex64 | None = None


class MediaResolved(Envelope):
    """A request whose media are identified. The body travels as JSON text and is opaque from here on."""

    SCHEMA: ClassVar[str] = "media-resolved.v1"

    body: str | None = Field(default=None, description="JSON text of the OpenAI body, client uuids removed")
    body_claim: Claim | None = Field(default=None, description="instead of body when it is over 256 KiB")
    media: list[MediaItem] = Field(default_factory=list)
