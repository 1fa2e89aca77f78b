"""A video file's numbers as vLLM's loaders take them, read with PyAV in OpenCV's way.

The container's frame count, or its duration times the average rate where it has none; fewer if fewer can be read.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from math import floor

import av


@dataclass(frozen=True, slots=True)
class VideoSource:
    """A video file's numbers: frames in all, average frames per second, size in pixels after rotation."""

    frames: int
    fps: float
    height: int
    width: int


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
