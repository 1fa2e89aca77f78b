"""``kvroute.expanded.v1``: the request as the worker's model sees it, reduced to block addresses."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from schemas.media import MediaResolved
from schemas.types import Hex64, Int64, Part, U64List
from services.kv.reason import Reason


class MediaSpan(Part):
    """A medium's placeholder range in the expanded prompt, in tokens."""

    item: Int64 = Field(ge=0, description="index in media")
    offset: Int64 = Field(ge=0)
    length: Int64 = Field(gt=0)
    identity: Hex64
    vision_tokens: Int64 = Field(ge=0, description="tokens the vision encoder fills")


class Expanded(MediaResolved):
    """A request with its prompt length, how far the view is proven, and its addresses. No token ids."""

    SCHEMA: ClassVar[str] = "expanded.v1"

    prompt_tokens: Int64 = Field(ge=0, description="tokens of the whole prompt; an estimate after exact_tokens")
    exact_tokens: Int64 = Field(ge=0, description="leading tokens proven equal to the worker's view")
    reason: Reason | None = Field(default=None, description="why exactness ends, if it does")
    detail: str | None = Field(default=None, max_length=500)
    addresses: dict[Int64, U64List] = Field(
        default_factory=dict, description="by block size: addresses of the full blocks of the exact prefix"
    )
    spans: list[MediaSpan] = Field(default_factory=list)
    vision_tokens: Int64 = 0
    variant: str = Field(default="", description="layout variant used, such as qwen3_vl")
