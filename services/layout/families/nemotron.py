"""Nemotron Nano VL and Nemotron 3 Nano Omni: images and videos as runs of ``<image>`` between ``<img>`` and ``</img>``.

Everything comes from config.json and the engine's flags; the engine does not read preprocessor_config.json. A
checkpoint with ``min_num_patches`` sizes images by the patch, within a budget that follows from the engine's
``--max-model-len``; an older one cuts them into tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.families.family import NO_MARKERS, Encode, Expansion, Markers, NotExact, clip_of, run, size_of
from services.layout.families.nemotron_images import PATCHES_PER_TOKEN, ImageBudget
from services.layout.families.nemotron_videos import frame_grid, frame_seconds, separators
from services.layout.families.pruning import spread
from services.layout.families.tiles import tiles_of
from services.layout.families.variants import UnknownVariant, named, parts_of, pruning_part, pruning_rate, require
from services.layout.shapes import MediaShape

MAX_TILES = 12
_LENGTH = "len-"


@dataclass(frozen=True, slots=True)
class NemotronIds:
    """Special token ids. ``video`` is None where ``<video>`` is no single token: then videos have no placeholder."""

    image: int
    video: int | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Frames:
    """How video frames are sized: ``target`` patches (None: as one tile), ``temporal`` frames to a group."""

    target: int | None
    keep_aspect: bool
    temporal: int


@dataclass(frozen=True)
class Nemotron:
    """Layout of ``NemotronH_Nano_Omni_Reasoning_V3`` and ``NemotronH_Nano_VL_V2``.

    ``budget`` is None for a checkpoint that cuts images into tiles of ``tile`` pixels.
    """

    family: str
    ids: NemotronIds
    frames: Frames
    tile: int
    patch: int
    thumbnail: bool
    budget: ImageBudget | None
    max_model_len: int | None = None
    pruning: float = 0.0

    @property
    def variant(self) -> str:
        """The family, and the engine's length where images depend on it."""
        known = self.budget is not None and self.max_model_len is not None
        return named(self.family, f"{_LENGTH}{self.max_model_len}" if known else "")

    @property
    def video_variant(self) -> str:
        """The family, and the rate of pruning if there is any."""
        return "" if self.ids.video is None else named(self.family, pruning_part(self.pruning))

    def video_variants(self, pruning_rates: Sequence[float] = ()) -> tuple[str, ...]:
        """All tokens, or those that pruning leaves."""
        if self.ids.video is None:
            return ()
        return tuple(named(self.family, pruning_part(rate)) for rate in (0.0, *pruning_rates))

    def chosen(self, image: str | None = None, video: str | None = None) -> Self:
        """With the engine's length an image variant names and the rate a video variant names."""
        length, rate = self.max_model_len, self.pruning
        if image is not None:
            length = _length(image, parts_of(image, self.family))
        if video is not None:
            rate = pruning_rate(parts_of(video, self.family))
        chosen = replace(self, max_model_len=length, pruning=rate)
        require(chosen.variant, chosen.variant if image is None else image)
        require(chosen.video_variant, chosen.video_variant if video is None else video)
        return chosen

    def under(self, max_model_len: int | None) -> Self:
        """With the engine's length, which bounds the images."""
        return replace(self, max_model_len=max_model_len)

    def placeholder(self, kind: MediaKind) -> int | None:
        """``<image>`` and ``<video>``."""
        return {MediaKind.IMAGE: self.ids.image, MediaKind.VIDEO: self.ids.video}.get(kind)

    def placeholder_text(self, kind: MediaKind) -> str | None:
        """``<image>`` and ``<video>``."""
        return None if self.placeholder(kind) is None else f"<{kind}>"

    @property
    def media_tokens(self) -> frozenset[int]:
        """``<image>`` and what stands around its runs, in videos too."""
        return frozenset({self.ids.image, self.ids.start, self.ids.end})

    def markers(self, kind: MediaKind) -> Markers:
        """None: only the placeholder is replaced."""
        return NO_MARKERS

    def expand(self, shape: MediaShape, encode: Encode) -> Expansion:
        """Raises NotExact when the medium is unknown in part, refused, or its layout depends on an unknown length."""
        try:
            if shape.kind is MediaKind.IMAGE:
                tokens = self.image_tokens(*size_of(shape))
                return Expansion(self._framed(tokens), tokens)
            if shape.kind is MediaKind.VIDEO:
                return self._expand_video(shape, encode)
        except (ValueError, ArithmeticError) as error:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, str(error)) from None
        raise NotExact(Reason.UNSUPPORTED_MEDIA, f"{self.family} has no {shape.kind} input")

    def image_tokens(self, height: int, width: int) -> int:
        """Tokens of an image, if all of the request fit together. Raises NotExact, ZeroDivisionError."""
        if self.budget is None:
            return tiles_of(height, width, self.tile, MAX_TILES, thumbnail=self.thumbnail) * self.tokens_per_tile
        if self.max_model_len is None:
            detail = "how many tokens the engine takes is unknown, and images depend on it"
            raise NotExact(Reason.CONTRACT_MISSING, detail)
        tall, wide = self.budget.alone(height, width, self.max_model_len)
        return tall * wide // PATCHES_PER_TOKEN

    @property
    def tokens_per_tile(self) -> int:
        """Tokens of a tile, and of a frame that is sized like one."""
        return (self.tile // self.patch) ** 2 // PATCHES_PER_TOKEN

    def tokens_per_group(self, height: int, width: int) -> int:
        """Tokens of a group of video frames before pruning."""
        if self.frames.target is None:
            return self.tokens_per_tile
        rows, columns = frame_grid(height, width, self.frames.target, keep_aspect=self.frames.keep_aspect)
        return rows * columns // PATCHES_PER_TOKEN

    def unprovable(self, media: Sequence[MediaShape], side_by_side: bool) -> Mapping[int, NotExact]:
        """Videos are laid out one alone; images as long as all fit into the engine's length together.

        Images that don't fit are shrunk together, but only those the engine has not seen before: how much depends on
        its cache.
        """
        images = [index for index, shape in enumerate(media) if shape.kind is MediaKind.IMAGE]
        videos = [index for index, shape in enumerate(media) if shape.kind is MediaKind.VIDEO]
        found: dict[int, NotExact] = {}
        if images and self._too_many([media[index] for index in images]):
            detail = f"{len(images)} images exceed what an engine with max_model_len {self.max_model_len} gives them"
            found |= dict.fromkeys(images, NotExact(Reason.BUDGET_EXCEEDED, detail))
        if videos and (alone := self._why_not_alone(len(videos), len(media), side_by_side)) is not None:
            found |= dict.fromkeys(videos, alone)
        return found

    def overridden(self, processor_kwargs: Mapping[str, Any]) -> Self:
        """Raises NotExact for every argument: none is known."""
        if processor_kwargs:
            names = ", ".join(sorted(processor_kwargs))
            raise NotExact(Reason.MM_PROCESSOR_KWARGS, f"mm_processor_kwargs sets {names}"[:200])
        return self

    def _too_many(self, images: Sequence[MediaShape]) -> bool:
        if self.budget is None or self.max_model_len is None:
            return False
        # Whatever part of the images the engine has in its cache: each is sized as if it were alone.
        room = self.budget.available(self.max_model_len, 0)
        if len(images) > 1 and self.budget.fewest * len(images) > room:
            return True
        return sum(self._patches(image, self.max_model_len) for image in images) > max(room, self.budget.fewest)

    def _patches(self, image: MediaShape, max_model_len: int) -> int:
        """Patches of an image; the most there can be where that is unknown."""
        assert self.budget is not None
        try:
            tall, wide = self.budget.alone(*size_of(image), max_model_len)
        except (NotExact, ValueError, ArithmeticError):
            return 2 * self.budget.most
        return tall * wide

    def _why_not_alone(self, videos: int, media: int, side_by_side: bool) -> NotExact | None:
        if side_by_side:
            return NotExact(Reason.ADJACENT_VIDEOS, "two videos stand side by side")
        if videos > 1:
            return NotExact(Reason.MULTIPLE_VIDEOS, f"the prompt has {videos} videos, the layout of one is known")
        if media > 1:
            return NotExact(Reason.MIXED_MEDIA, "the prompt has a video and other media")
        return None

    def _expand_video(self, shape: MediaShape, encode: Encode) -> Expansion:
        indices, fps = clip_of(shape)
        if not indices or fps <= 0:
            raise ValueError(f"{len(indices)} frames at {fps} fps have no timestamps")
        texts = separators(frame_seconds(indices, fps), self.frames.temporal)
        counts = spread(self.tokens_per_group(*size_of(shape)), len(texts), self.pruning)
        token_ids: list[int] = []
        for text, tokens in zip(texts, counts, strict=True):
            token_ids += [*encode(text), *self._framed(tokens)]
        return Expansion(token_ids, sum(counts))

    def _framed(self, tokens: int) -> list[int]:
        return [self.ids.start, *run(self.ids.image, tokens), self.ids.end]


def _length(variant: str, parts: list[str]) -> int | None:
    if not parts:
        return None
    digits = parts[0].removeprefix(_LENGTH)
    if len(parts) > 1 or digits == parts[0] or not (digits.isascii() and digits.isdigit()):
        raise UnknownVariant(f"the layout {variant!r} names no length")
    return int(digits)
