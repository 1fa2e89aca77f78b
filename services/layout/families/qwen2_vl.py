"""Qwen2-VL and Qwen2.5-VL. A video is one run of pads; the budget of pixels is per frame."""

from __future__ import annotations

from math import ceil

from services.kv.reason import Reason
from services.layout.families.family import Encode, Expansion, NotExact
from services.layout.families.qwen import PixelBounds, QwenVision, size_of
from services.layout.families.resize import smart_resize
from services.layout.shapes import MediaShape


def video_grid(frames: int, height: int, width: int, bounds: PixelBounds) -> tuple[int, int, int]:
    """Temporal, vertical and horizontal patches of a clip of sampled frames. Raises ValueError for refused sizes."""
    if frames < 1:
        raise ValueError(f"a clip has {frames} frames, expected at least 1")
    resized = smart_resize(height, width, bounds.factor, bounds.min_pixels, bounds.max_pixels)
    return ceil(frames / bounds.temporal), resized[0] // bounds.patch, resized[1] // bounds.patch


class Qwen2VL(QwenVision):
    """Layout of ``qwen2_vl`` and ``qwen2_5_vl``."""

    def expand_video(self, shape: MediaShape, encode: Encode) -> Expansion:
        """``<|video_pad|>`` times T * gh * gw / merge^2, no timestamps."""
        height, width = size_of(shape)
        frames = len(shape.frame_indices) if shape.frame_indices is not None else shape.frames
        if frames is None:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, "the number of sampled frames is unknown")
        grid_t, grid_h, grid_w = video_grid(frames, height, width, self.video)
        count = grid_t * grid_h * grid_w // self.video.merge**2
        if count == 0:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, f"a video of {height}x{width} resizes to nothing")
        return Expansion([self.ids.video_pad] * count, count)
