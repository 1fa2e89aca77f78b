"""What the Qwen vision families have in common: their parameters, and images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.families.family import NO_MARKERS, Encode, Expansion, Markers, NotExact, run, size_of
from services.layout.families.parameters import Checkpoint, UnusableFamily, count, same, section
from services.layout.families.resize import smart_resize
from services.layout.families.variants import UnknownVariant
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


@dataclass(frozen=True)
class QwenVision(ABC):
    """Images of Qwen2-VL and all after it: one placeholder becomes one token per merged patch. Base of the families."""

    variant: str
    ids: QwenIds
    image: PixelBounds
    video: PixelBounds

    @property
    @abstractmethod
    def video_variant(self) -> str:
        """The family's own."""

    @abstractmethod
    def video_variants(self, pruning_rates: Sequence[float] = ()) -> tuple[str, ...]:
        """The family's own."""

    def chosen(self, image: str | None = None, video: str | None = None) -> Self:
        """Images have one layout; videos are the family's own. Raises UnknownVariant."""
        if image not in (None, self.variant):
            raise UnknownVariant(f"{self.variant} has no layout of images {image!r}")
        return self if video is None else self.with_video(video)

    @abstractmethod
    def with_video(self, variant: str) -> Self:
        """The layout with a named variant of videos. Raises UnknownVariant."""

    def under(self, max_model_len: int | None) -> Self:
        """The same: no layout of Qwen depends on what the engine takes."""
        return self

    def placeholder(self, kind: MediaKind) -> int | None:
        """The single pad token a template leaves between vision_start and vision_end."""
        if kind is MediaKind.IMAGE:
            return self.ids.image_pad
        return self.ids.video_pad if kind is MediaKind.VIDEO else None

    def placeholder_text(self, kind: MediaKind) -> str | None:
        """The pad between its markers."""
        pad = {MediaKind.IMAGE: IMAGE_PAD, MediaKind.VIDEO: VIDEO_PAD}.get(kind)
        return None if pad is None else f"{VISION_START}{pad}{VISION_END}"

    @property
    def media_tokens(self) -> frozenset[int]:
        """The pads; markers stand around images too, where they are not of the range."""
        return frozenset({self.ids.image_pad, self.ids.video_pad})

    def markers(self, kind: MediaKind) -> Markers:
        """None: the markers of the template stay."""
        return NO_MARKERS

    def expand(self, shape: MediaShape, encode: Encode) -> Expansion:
        """Raises NotExact when the size is unknown or one the engine refuses."""
        try:
            if shape.kind is MediaKind.IMAGE:
                return self._expand_image(shape)
            if shape.kind is MediaKind.VIDEO:
                return self.expand_video(shape, encode)
        except (ValueError, ArithmeticError) as error:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, str(error)) from None
        raise NotExact(Reason.UNSUPPORTED_MEDIA, f"{self.variant} has no {shape.kind} input")

    @abstractmethod
    def expand_video(self, shape: MediaShape, encode: Encode) -> Expansion:
        """The family's own rule. Raises NotExact or ValueError."""

    def unprovable(self, media: Sequence[MediaShape], side_by_side: bool) -> Mapping[int, NotExact]:
        """None: images and videos expand independently and in order, adjacent ones too."""
        return {}

    def overridden(self, processor_kwargs: Mapping[str, Any]) -> Self:
        """Pixel bounds given flat apply to images and videos alike. Raises NotExact for any other argument."""
        unknown = sorted(processor_kwargs.keys() - {"min_pixels", "max_pixels", "size"})
        if unknown or not isinstance(processor_kwargs.get("size") or {}, dict):
            raise NotExact(Reason.MM_PROCESSOR_KWARGS, f"mm_processor_kwargs sets {', '.join(unknown) or 'size'}"[:200])
        try:
            image, video = self.image.overridden(processor_kwargs), self.video.overridden(processor_kwargs)
        except ValueError as error:
            raise NotExact(Reason.MM_PROCESSOR_KWARGS, str(error)) from None
        return replace(self, image=image, video=video)

    def image_tokens(self, height: int, width: int) -> int:
        """Tokens of an image. Raises ValueError for sizes the engine refuses."""
        factor = self.image.factor
        resized = smart_resize(height, width, factor, self.image.min_pixels, self.image.max_pixels)
        return (resized[0] // factor) * (resized[1] // factor)

    def _expand_image(self, shape: MediaShape) -> Expansion:
        height, width = size_of(shape)
        tokens = self.image_tokens(height, width)
        if tokens == 0:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, f"an image of {height}x{width} resizes to nothing")
        return Expansion(run(self.ids.image_pad, tokens), tokens)


def read_ids(checkpoint: Checkpoint) -> QwenIds:
    """Special ids. Raises UnusableFamily unless config.json and tokenizer agree on each."""
    return QwenIds(
        image_pad=checkpoint.agreed("image_token_id", IMAGE_PAD),
        video_pad=checkpoint.agreed("video_token_id", VIDEO_PAD),
        vision_start=checkpoint.agreed("vision_start_token_id", VISION_START),
        vision_end=checkpoint.agreed("vision_end_token_id", VISION_END),
    )


def read_bounds(checkpoint: Checkpoint) -> tuple[PixelBounds, PixelBounds]:
    """Parameters of images and videos; a folder without a video processor uses the image processor's for both.

    Raises UnusableFamily where one is missing or config.json says something else.
    """
    images, videos = checkpoint.folder.image_processor, checkpoint.folder.video_processor
    image = _bounds(checkpoint, images, "preprocessor_config.json")
    return image, _bounds(checkpoint, videos or images, "video_preprocessor_config.json")


def _bounds(checkpoint: Checkpoint, config: Mapping[str, Any], file: str) -> PixelBounds:
    size = section(config, "size")
    areas = {
        "min_pixels": _first(config.get("min_pixels"), size.get("shortest_edge")),
        "max_pixels": _first(config.get("max_pixels"), size.get("longest_edge")),
    }
    file = f"{file} (or processor_config.json)"
    bounds = PixelBounds(
        min_pixels=count(areas, "min_pixels", file),
        max_pixels=count(areas, "max_pixels", file),
        patch=count(config, "patch_size", file),
        merge=count(config, "merge_size", file),
        temporal=count(config, "temporal_patch_size", file),
    )
    if config.get("do_resize") is False:
        raise UnusableFamily(f"{file} sets do_resize to false: expected the family's resize")
    vision = checkpoint.vision
    same("patch_size", ("config.json", vision.get("patch_size")), (file, bounds.patch))
    same("spatial_merge_size", ("config.json", vision.get("spatial_merge_size")), (file, bounds.merge))
    same("temporal_patch_size", ("config.json", vision.get("temporal_patch_size")), (file, bounds.temporal))
    return bounds


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
