"""What the Qwen vision families have in common: their parameters, and images."""

from __future__ import annotations

from dataclasses import dataclass

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
