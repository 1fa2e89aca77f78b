"""Qwen2-VL and Qwen2.5-VL. A video is one run of pads; the budget of pixels is per frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Self

from services.kv.reason import Reason
from services.layout.families.family import Encode, Expansion, NotExact, run, size_of
from services.layout.families.parameters import Checkpoint, UnusableFamily
from services.layout.families.pruning import kept_tokens
from services.layout.families.qwen import PixelBounds, QwenVision, read_bounds, read_ids
from services.layout.families.resize import smart_resize
from services.layout.families.variants import named, parts_of, pruning_part, pruning_rate, require
from services.layout.shapes import MediaShape

NEVER_PRUNED = ("qwen2_vl",)
"""Model types whose engine class has no pruning."""


def video_grid(frames: int, height: int, width: int, bounds: PixelBounds) -> tuple[int, int, int]:
    """Temporal, vertical and horizontal patches of a clip of sampled frames. Raises ValueError for refused sizes."""
    if frames < 1:
        raise ValueError(f"a clip has {frames} frames, expected at least 1")
    resized = smart_resize(height, width, bounds.factor, bounds.min_pixels, bounds.max_pixels)
    return ceil(frames / bounds.temporal), resized[0] // bounds.patch, resized[1] // bounds.patch


@dataclass(frozen=True)
class Qwen2VL(QwenVision):
    """Layout of ``qwen2_vl`` and ``qwen2_5_vl``."""

    pruning: float = 0.0

    @property
    def video_variant(self) -> str:
        """The family, and the rate of pruning if there is any."""
        return named(self.variant, pruning_part(self.pruning))

    def video_variants(self, pruning_rates: Sequence[float] = ()) -> tuple[str, ...]:
        """All frames' tokens, or those that pruning leaves where the engine can prune."""
        rates = () if self.variant in NEVER_PRUNED else pruning_rates
        return tuple(named(self.variant, pruning_part(rate)) for rate in (0.0, *rates))

    def with_video(self, variant: str) -> Self:
        """With the rate of pruning a variant names. Raises UnknownVariant."""
        chosen = replace(self, pruning=pruning_rate(parts_of(variant, self.variant)))
        require(chosen.video_variant, variant)
        if chosen.pruning and self.variant in NEVER_PRUNED:
            require(self.variant, variant)
        return chosen

    def expand_video(self, shape: MediaShape, encode: Encode) -> Expansion:
        """``<|video_pad|>`` times T * gh * gw / merge^2, no timestamps."""
        height, width = size_of(shape)
        frames = len(shape.frame_indices) if shape.frame_indices is not None else shape.frames
        if frames is None:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, "the number of sampled frames is unknown")
        grid_t, grid_h, grid_w = video_grid(frames, height, width, self.video)
        per_pair = grid_h * grid_w // self.video.merge**2
        if per_pair == 0:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, f"a video of {height}x{width} resizes to nothing")
        tokens = kept_tokens(per_pair, grid_t, self.pruning) if self.pruning else per_pair * grid_t
        return Expansion(run(self.ids.video_pad, tokens), tokens)


def build(model_type: str, checkpoint: Checkpoint) -> Qwen2VL:
    """The layout of a checkpoint. Raises UnusableFamily."""
    if checkpoint.folder.video_processor.get("cap_pixels_per_frame"):
        raise UnusableFamily("the video processor's config sets cap_pixels_per_frame: that layout is not known")
    return Qwen2VL(model_type, read_ids(checkpoint), *read_bounds(checkpoint))
