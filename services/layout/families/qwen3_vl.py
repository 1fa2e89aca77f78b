"""Qwen3-VL, Qwen3.5 and Qwen3.6, dense and mixture of experts. Every pair of video frames carries its timestamp.

The video layout is that of vLLM 0.32 with transformers >= 5.15: the replacement stands for the bare ``<|video_pad|>``,
so the template's own ``<|vision_start|>`` and ``<|vision_end|>`` stay around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from services.kv.reason import Reason
from services.layout.families.family import Encode, Expansion, NotExact
from services.layout.families.qwen import PixelBounds, QwenVision, size_of
from services.layout.families.resize import smart_resize_clip
from services.layout.shapes import MediaShape


def video_grid(frames: int, height: int, width: int, bounds: PixelBounds) -> tuple[int, int, int]:
    """Temporal, vertical and horizontal patches of a clip of sampled frames. Raises ValueError for refused sizes."""
    resized = smart_resize_clip(
        frames, height, width, bounds.factor, bounds.temporal, bounds.min_pixels, bounds.max_pixels
    )
    return ceil(frames / bounds.temporal), resized[0] // bounds.patch, resized[1] // bounds.patch


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


class Qwen3VL(QwenVision):
    """Layout of ``qwen3_vl``, ``qwen3_vl_moe``, ``qwen3_5`` and ``qwen3_5_moe``."""

    def expand_video(self, shape: MediaShape, encode: Encode) -> Expansion:
        """For every pair: timestamp, vision_start, pads, vision_end; the range is all of it."""
        height, width = size_of(shape)
        if shape.frame_indices is None or shape.fps is None:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, "the sampled frames and the source's frame rate are unknown")
        grid_t, grid_h, grid_w = video_grid(len(shape.frame_indices), height, width, self.video)
        per_pair = grid_h * grid_w // self.video.merge**2
        if per_pair == 0:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, f"a video of {height}x{width} resizes to nothing")
        token_ids: list[int] = []
        for seconds in timestamps(shape.frame_indices, shape.fps, self.video.temporal):
            token_ids += encode(timestamp_text(seconds))
            token_ids.append(self.ids.vision_start)
            token_ids += [self.ids.video_pad] * per_pair
            token_ids.append(self.ids.vision_end)
        return Expansion(token_ids, per_pair * grid_t)
