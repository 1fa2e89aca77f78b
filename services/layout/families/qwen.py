"""What the Qwen vision families have in common: their parameters, and images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.families.family import Encode, Expansion, NotExact
from services.layout.families.resize import smart_resize
from services.layout.shapes import MediaShape

IMAGE_PAD = "<|image_pad|>"
VIDEO_PAD = "<|video_pad|>"
VISION_START = "<|vision_start|>"
VISION_END = "<|vision_end|>"


@dataclass(frozen=True, slots=True)
class QwenIds:
    """Special token ids, as config and tokenizer of the model agree on."""

    image_pad: int
    video_pad: int
    vision_start: int
    vision_end: int


@dataclass(frozen=True, slots=True)
class PixelBounds:
    """Parameters of an image or video processor, read from the model folder."""

    min_pixels: int
    max_pixels: int
    patch: int
    merge: int
    temporal: int

    @property
    def factor(self) -> int:
        """Pixels along a side that one token covers."""
        return self.patch * self.merge

    def overridden(self, processor_kwargs: Mapping[str, Any]) -> PixelBounds:
        """With a request's pixel bounds; what it does not set stays. Raises ValueError for bounds that are no counts.

        ``min_pixels`` and ``max_pixels`` beat ``size``, whose edges are areas too.
        """
        size = processor_kwargs.get("size") or {}
        given = {
            "min_pixels": processor_kwargs.get("min_pixels") or size.get("shortest_edge") or self.min_pixels,
            "max_pixels": processor_kwargs.get("max_pixels") or size.get("longest_edge") or self.max_pixels,
        }
        for name, value in given.items():
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise ValueError(f"{name} is {value!r}, expected a positive number of pixels")
        return replace(self, **given)


class QwenVision:
    """Images of Qwen2-VL and all after it: one placeholder becomes one token per merged patch. Base of the families."""

    def __init__(self, variant: str, ids: QwenIds, image: PixelBounds, video: PixelBounds) -> None:
        self.variant = variant
        self.ids = ids
        self.image = image
        self.video = video

    def placeholder(self, kind: MediaKind) -> int | None:
        """The single pad token a template leaves between vision_start and vision_end."""
        if kind is MediaKind.IMAGE:
            return self.ids.image_pad
        return self.ids.video_pad if kind is MediaKind.VIDEO else None

    def placeholder_text(self, kind: MediaKind) -> str | None:
        """The pad between its markers."""
        pad = {MediaKind.IMAGE: IMAGE_PAD, MediaKind.VIDEO: VIDEO_PAD}.get(kind)
        return None if pad is None else f"{VISION_START}{pad}{VISION_END}"

    def expand(self, shape: MediaShape, encode: Encode) -> Expansion:
        """Raises NotExact when the size is unknown or one the engine refuses."""
        try:
            if shape.kind is MediaKind.IMAGE:
                return self._expand_image(shape)
            if shape.kind is MediaKind.VIDEO:
                return self.expand_video(shape, encode)
        except (ValueError, ZeroDivisionError) as error:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, str(error)) from None
        raise NotExact(Reason.UNSUPPORTED_MEDIA, f"{self.variant} has no {shape.kind} input")

    def expand_video(self, shape: MediaShape, encode: Encode) -> Expansion:
        """The family's own rule. Raises NotExact or ValueError."""
        raise NotImplementedError

    def overridden(self, processor_kwargs: Mapping[str, Any]) -> Self:
        """Pixel bounds given flat apply to images and videos alike. Raises NotExact for any other argument."""
        unknown = sorted(processor_kwargs.keys() - {"min_pixels", "max_pixels", "size"})
        if unknown or not isinstance(processor_kwargs.get("size") or {}, dict):
            raise NotExact(Reason.MM_PROCESSOR_KWARGS, f"mm_processor_kwargs sets {', '.join(unknown) or 'size'}"[:200])
        try:
            bounds = (self.image.overridden(processor_kwargs), self.video.overridden(processor_kwargs))
        except ValueError as error:
            raise NotExact(Reason.MM_PROCESSOR_KWARGS, str(error)) from None
        return type(self)(self.variant, self.ids, *bounds)

    def image_tokens(self, height: int, width: int) -> int:
        """Tokens of an image. Raises ValueError for sizes the engine refuses."""
        factor = self.image.factor
        resized = smart_resize(height, width, factor, self.image.min_pixels, self.image.max_pixels)
        return (resized[0] // factor) * (resized[1] // factor)

    def _expand_image(self, shape: MediaShape) -> Expansion:
        height, width = size_of(shape)
        count = self.image_tokens(height, width)
        if count == 0:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, f"an image of {height}x{width} resizes to nothing")
        return Expansion([self.ids.image_pad] * count, count)


def size_of(shape: MediaShape) -> tuple[int, int]:
    """Height and width. Raises NotExact when they are unknown."""
    if shape.height is None or shape.width is None:
        raise NotExact(Reason.UNSUPPORTED_MEDIA, f"the size of the {shape.kind} is unknown")
    return shape.height, shape.width
