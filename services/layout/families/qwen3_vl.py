"""Qwen3-VL, Qwen3.5 and Qwen3.6, dense and mixture of experts. Every pair of video frames carries its timestamp.

What is replaced, and how frames are resized, depends on the transformers version of the engine: see generations.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil
from typing import Self

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.families.family import NO_MARKERS, Encode, Expansion, Markers, NotExact, clip_of, run, size_of
from services.layout.families.generations import CAPPED, GENERATIONS, Generation, resize_clip
from services.layout.families.parameters import Checkpoint
from services.layout.families.pruning import spread
from services.layout.families.qwen import QwenVision, read_bounds, read_ids
from services.layout.families.variants import UnknownVariant, named, parts_of, pruning_part, pruning_rate, require
from services.layout.shapes import MediaShape


def timestamps(frame_indices: Sequence[int], fps: float, temporal: int = 2) -> list[float]:
    """Seconds of each group of ``temporal`` frames: the mean of its first and last frame, the last one repeated.

    ``fps`` is the source's. Raises ValueError when it is not positive or there are no frames.
    """
    if not frame_indices or fps <= 0:
        raise ValueError(f"{len(frame_indices)} frames at {fps} fps have no timestamps")
    padded = [*frame_indices, *[frame_indices[-1]] * (-len(frame_indices) % temporal)]
    stamps = [index / fps for index in padded]
    return [(stamps[first] + stamps[first + temporal - 1]) / 2 for first in range(0, len(stamps), temporal)]


def timestamp_text(seconds: float) -> str:
    """The stamp as the model reads it."""
    return f"<{seconds:.1f} seconds>"


@dataclass(frozen=True)
class Qwen3VL(QwenVision):
    """Layout of ``qwen3_vl``, ``qwen3_vl_moe``, ``qwen3_5`` and ``qwen3_5_moe``."""

    generation: Generation = GENERATIONS[0]
    capped: bool = False
    pruning: float = 0.0

    @property
    def video_variant(self) -> str:
        """The family, the transformers generation, the cap and the rate of pruning if there are any."""
        return named(self.variant, self.generation.name, CAPPED if self.capped else "", pruning_part(self.pruning))

    def video_variants(self, pruning_rates: Sequence[float] = ()) -> tuple[str, ...]:
        """Every generation, as configured and with the cap where it exists, with each rate of pruning."""
        newest = GENERATIONS[0]
        kinds = [(generation, False) for generation in GENERATIONS] + [(newest, True)]
        return tuple(
            replace(self, generation=generation, capped=capped, pruning=rate).video_variant
            for (generation, capped), rate in product(kinds, (0.0, *pruning_rates))
        )

    def with_video(self, variant: str) -> Self:
        """As a variant says. Raises UnknownVariant."""
        parts = parts_of(variant, self.variant)
        generation = next((one for one in GENERATIONS if parts and one.name == parts[0]), None)
        capped = CAPPED in parts
        if generation is None or (capped and generation is not GENERATIONS[0]):
            raise UnknownVariant(f"{self.variant} has no layout of videos {variant!r}")
        chosen = replace(self, generation=generation, capped=capped, pruning=pruning_rate(parts))
        require(chosen.video_variant, variant)
        return chosen

    def markers(self, kind: MediaKind) -> Markers:
        """Older generations replace the template's vision_start and vision_end together with the pad."""
        if kind is not MediaKind.VIDEO or self.generation.outer_markers:
            return NO_MARKERS
        return Markers((self.ids.vision_start,), (self.ids.vision_end,))

    def expand_video(self, shape: MediaShape, encode: Encode) -> Expansion:
        """For every pair: timestamp, vision_start, pads, vision_end; the range is all of it."""
        indices, fps = clip_of(shape)
        per_pair = self.tokens_per_group(len(indices), *size_of(shape))
        if per_pair == 0:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, f"a video of {shape.height}x{shape.width} resizes to nothing")
        stamps = timestamps(indices, fps, self.video.temporal)
        counts = spread(per_pair, len(stamps), self.pruning)
        token_ids: list[int] = []
        for seconds, tokens in zip(stamps, counts, strict=True):
            token_ids += encode(timestamp_text(seconds))
            token_ids.append(self.ids.vision_start)
            token_ids += run(self.ids.video_pad, tokens)
            token_ids.append(self.ids.vision_end)
        return Expansion(token_ids, sum(counts))

    def grid(self, frames: int, height: int, width: int) -> tuple[int, int, int]:
        """Temporal, vertical and horizontal patches of a clip. Raises ValueError for what the engine refuses."""
        bounds = self.video
        tall, wide = resize_clip(
            self.generation, frames, (height, width), bounds.factor, bounds.temporal,
            (bounds.min_pixels, bounds.max_pixels), capped=self.capped,
        )  # fmt: skip
        return ceil(frames / bounds.temporal), tall // bounds.patch, wide // bounds.patch

    def tokens_per_group(self, frames: int, height: int, width: int) -> int:
        """Tokens of each pair of frames before pruning. Raises ValueError for what the engine refuses."""
        _, tall, wide = self.grid(frames, height, width)
        return tall * wide // self.video.merge**2


def build(model_type: str, checkpoint: Checkpoint) -> Qwen3VL:
    """The layout of a checkpoint. Raises UnusableFamily."""
    capped = bool(checkpoint.folder.video_processor.get("cap_pixels_per_frame"))
    return Qwen3VL(model_type, read_ids(checkpoint), *read_bounds(checkpoint), capped=capped)
