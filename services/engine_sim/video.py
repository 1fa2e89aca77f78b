"""What vLLM's default loaders make of a video for the Qwen families: source numbers, and which frames are taken.

Sampling is pure; counting reads the file with PyAV in OpenCV's
way: the container's frame count, or its duration times the average rate where it has none; fewer if fewer can be read.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor

import av
import numpy as np

FPS = 2.0
MAX_FPS = 30.0
MIN_FRAMES = 4
MAX_FRAMES = 768


@dataclass(frozen=True, slots=True)
class VideoSource:
    """A video file's numbers: frames in all, average frames per second, size in pixels after rotation."""

    frames: int
    fps: float
    height: int
    width: int


def sample_qwen3(total: int, fps: float, target: float = FPS) -> list[int]:
    """Frame indices of the ``qwen3_vl`` loader: evenly spread, first and last included, ties to even.

    ``fps`` is the source's; ``target`` frames a second are wanted.
    """
    count = min(max(int(total / fps * min(target, MAX_FPS)), MIN_FRAMES), MAX_FRAMES, total)
    return [int(index) for index in np.round(np.linspace(0, total - 1, count))]


def sample_qwen2(total: int, fps: float, target: float = FPS) -> list[int]:
    """Frame indices of the ``qwen2_vl`` loader: torch's float32 ``arange`` over an even number of steps.

    Raises ValueError where the loader divides by zero (a single frame, no rate).
    """
    if fps <= 0:
        raise ValueError("the video has no frame rate")
    most = floor(min(MAX_FRAMES, total) / 2) * 2
    count = floor(min(max(total / fps * min(target, MAX_FPS), MIN_FRAMES), most, total) / 2) * 2
    if count == 0:
        raise ValueError(f"the video has {total} frames, expected at least 2")
    return [min(index, total - 1) for index in _arange_int(total, total / count)]


def _arange_int(end: int, step: float) -> list[int]:
    """``torch.arange(0, end, step).int()``: torch works in float32, in blocks of 16 made of two vectors of 8."""
    size = ceil(end / step)
    values: list[int] = []
    while len(values) <= size - 16:
        for _ in range(2):
            base = float(np.float32(step * len(values)))
            values += [int(np.float32(base + lane * step)) for lane in range(8)]
    values += [int(np.float32(step * index)) for index in range(len(values), size)]
    return values


def read_source(data: bytes) -> VideoSource:
    """Open a video file and decode it as far as it goes. Raises ValueError when nothing of it can be read."""
    try:
        with av.open(io.BytesIO(data), "r") as container:
            if not container.streams.video:
                raise ValueError("Could not open video stream")
            stream = container.streams.video[0]
            fps = float(stream.average_rate or stream.guessed_rate or 0)
            claimed = stream.frames or _frames_by_duration(container.duration, fps)
            size, readable = _decode(container.decode(stream))
    except (av.error.FFmpegError, OverflowError) as error:
        raise ValueError(f"Could not open video stream: {error}") from None
    if size is None:
        raise ValueError("Could not read any frame of the video")
    # One frame fewer than claimed is taken for a miscount of the header, not for a shorter clip.
    return VideoSource(readable if readable < claimed - 1 else claimed, fps, *size)


def _decode(frames: Iterator[av.VideoFrame]) -> tuple[tuple[int, int] | None, int]:
    """Height and width after rotation, and how many frames came before the end or the first broken one."""
    size = None
    count = 0
    with contextlib.suppress(av.error.FFmpegError):
        for frame in frames:
            if size is None:
                turned = frame.rotation % 180 != 0
                size = (frame.width, frame.height) if turned else (frame.height, frame.width)
            count += 1
    return size, count


def _frames_by_duration(duration: int | None, fps: float) -> int:
    if not duration or fps <= 0:
        raise ValueError("the video has neither a frame count nor a duration")
    return floor(duration / av.time_base * fps + 0.5)
