"""Which frames of a video an engine takes: the rules of vLLM's loaders, in their exact order of operations. Pure.

The source's numbers are the engine's decoder's, not the truth (docs/design.md, section 5). Where a loader raises an
error, so does the rule: such a video is not exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, floor

import numpy as np

UNKNOWN_RATE = 24.0
"""What Qwen3's loader takes a source without a frame rate for, in its timestamps too."""

MOST_A_SECOND = 30.0
"""The Qwen loaders take no more frames a second than this, whatever is asked for."""

GROUP = 2
"""Frames of a group: Qwen2's loader takes whole groups."""


class Loader(StrEnum):
    """vLLM's video loaders: the engine picks one by the model's video processor."""

    QWEN3_VL = "qwen3_vl"
    QWEN2_VL = "qwen2_vl"
    OPENCV = "opencv"


LOADERS: Mapping[str, Loader] = {
    "qwen2_vl": Loader.QWEN2_VL,
    "qwen2_5_vl": Loader.QWEN2_VL,
    "qwen3_vl": Loader.QWEN3_VL,
    "qwen3_vl_moe": Loader.QWEN3_VL,
    "qwen3_5": Loader.QWEN3_VL,
    "qwen3_5_moe": Loader.QWEN3_VL,
    "NemotronH_Nano_Omni_Reasoning_V3": Loader.OPENCV,
    "NemotronH_Nano_VL_V2": Loader.OPENCV,
}
"""The loader an engine takes for a model, by ``model_type`` of its config.json; others have no exact videos."""


@dataclass(frozen=True, slots=True)
class Source:
    """A video as the engine's decoder counts it. ``duration`` in seconds; None: frames over rate."""

    frames: int
    fps: float
    duration: float | None = None

    @property
    def seconds(self) -> float:
        """Its length; 0 without a rate."""
        if self.duration is not None:
            return self.duration
        return self.frames / self.fps if self.fps > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """What an engine is set to take (``--media-io-kwargs``, ``media_io_kwargs``), with the loader's own defaults.

    ``fps`` frames a second and ``num_frames`` in all; each loader looks at what it knows. ``fewest`` and ``most``
    bound what the Qwen loaders take.
    """

    loader: Loader
    fps: float
    num_frames: int = 32
    fewest: int = 4
    most: int = 768

    @classmethod
    def usual(cls, loader: Loader, fps: float | None = None, num_frames: int | None = None) -> Sampling:
        """A loader with its defaults for what is None."""
        usual = cls(loader, -1.0 if loader is Loader.OPENCV else 2.0)
        return replace(
            usual,
            fps=usual.fps if fps is None else fps,
            num_frames=usual.num_frames if num_frames is None else num_frames,
        )

    @property
    def name(self) -> str:
        """What all who sample the same way call it: only what the loader looks at."""
        if self.loader is Loader.OPENCV:
            return f"{self.loader}/fps={self.fps:g}/num_frames={self.num_frames}"
        return f"{self.loader}/fps={self.fps:g}"


@dataclass(frozen=True, slots=True)
class Sampled:
    """The frames a model sees: their indices in the source, and the frame rate its timestamps are made with."""

    indices: tuple[int, ...]
    fps: float

    @property
    def seconds(self) -> list[float]:
        """When each frame stands in the source."""
        return [index / self.fps for index in self.indices]


def sample(source: Source, sampling: Sampling) -> Sampled:
    """The frames of a video that the model sees.

    When Qwen3's loader has taken *every* frame, the processor samples again, at its own rate. Raises ValueError or
    ZeroDivisionError where the loader does.
    """
    if source.frames < 1:
        raise ValueError(f"the video has {source.frames} frames, expected at least 1")
    indices = distinct(taken(source, sampling))
    if sampling.loader is not Loader.QWEN3_VL:
        return Sampled(tuple(indices), source.fps)
    fps = source.fps if source.fps > 0 else UNKNOWN_RATE
    if len(indices) == source.frames:
        indices = qwen3_vl(source.frames, fps, Sampling.usual(Loader.QWEN3_VL))
    return Sampled(tuple(indices), fps)


def taken(source: Source, sampling: Sampling) -> list[int]:
    """Indices the loader asks its decoder for; one may come twice. Raises ValueError, ZeroDivisionError."""
    if sampling.loader is Loader.QWEN3_VL:
        return qwen3_vl(source.frames, source.fps if source.fps > 0 else UNKNOWN_RATE, sampling)
    if sampling.loader is Loader.QWEN2_VL:
        return qwen2_vl(source.frames, source.fps, sampling)
    return uniform(source.frames, source.seconds, sampling)


def distinct(indices: Sequence[int]) -> list[int]:
    """Each index once, in order: a decoder gives a frame once."""
    return sorted(set(indices))


def qwen3_vl(frames: int, fps: float, sampling: Sampling) -> list[int]:
    """Evenly spread from the first to the last frame, rounded half to even."""
    count = min(max(int(frames / fps * min(sampling.fps, MOST_A_SECOND)), sampling.fewest), sampling.most, frames)
    return [int(index) for index in np.linspace(0, frames - 1, count).round()]


def qwen2_vl(frames: int, fps: float, sampling: Sampling) -> list[int]:
    """Whole groups, every so many frames from the first; the last step may overshoot and is held back.

    Raises ValueError without a frame rate, ZeroDivisionError for a single frame.
    """
    if fps <= 0:
        raise ValueError("the video has no frame rate")
    most = floor(min(sampling.most, frames) / GROUP) * GROUP
    wanted = min(max(frames / fps * min(sampling.fps, MOST_A_SECOND), sampling.fewest), most, frames)
    count = floor(wanted / GROUP) * GROUP
    return [min(index, frames - 1) for index in float32_steps(frames, frames / count)]


def uniform(frames: int, seconds: float, sampling: Sampling) -> list[int]:
    """At most ``num_frames``, and at most ``fps`` a second, evenly spread and truncated."""
    count = frames
    if sampling.num_frames > 0:
        count = min(sampling.num_frames, frames)
    if sampling.fps > 0:
        count = min(count, floor(seconds * sampling.fps))
    count = max(1, count)
    return [int(index) for index in np.linspace(0, frames - 1, count)]


def float32_steps(end: int, step: float) -> list[int]:
    """``torch.arange(0, end, step).int()``, which works in float32: whole vectors of 8 from a rounded base each, two
    at a time, the rest one by one. There may be one more than ``end / step``.
    """
    size = ceil(end / step)
    vectors = size // 16 * 2
    bases = (step * (8 * np.arange(vectors))).astype(np.float32).astype(np.float64)
    whole = (bases[:, None] + step * np.arange(8)).astype(np.float32).ravel()
    rest = (step * np.arange(8 * vectors, size)).astype(np.float32)
    return [int(value) for value in np.concatenate([whole, rest])]
