"""What versions of transformers make of a Qwen3 video. Engines take the layout from the version they are built with."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from services.layout.families.resize import check_sides, grow, shrink

CAPPED = "capped"
"""Name of the variant with ``cap_pixels_per_frame`` on; transformers has it from 5.19, off unless asked for."""

_CAP_PER_FRAME = 768 * 32 * 32
_CAP_SLACK = 1.05


@dataclass(frozen=True, slots=True)
class Generation:
    """A range of transformers versions with one layout of videos. ``name`` says the first of them."""

    name: str
    outer_markers: bool
    """The template's vision_start and vision_end stay around the video: only the bare pad is replaced."""
    half_even: bool
    """The clip's length is rounded to whole groups, ties to even; else always up."""
    enlarges: bool
    """Frames smaller than one token are enlarged; else refused."""
    single_frame: bool
    """A clip of one frame is accepted."""


GENERATIONS = (
    Generation("transformers-5.15", outer_markers=True, half_even=True, enlarges=True, single_frame=False),
    Generation("transformers-5.10", outer_markers=True, half_even=False, enlarges=False, single_frame=True),
    Generation("transformers-5.0", outer_markers=False, half_even=False, enlarges=False, single_frame=True),
    Generation("transformers-4.57", outer_markers=False, half_even=True, enlarges=False, single_frame=False),
)
"""Newest first; the newest is that of vLLM 0.32."""


def resize_clip(
    generation: Generation,
    frames: int,
    size: tuple[int, int],
    factor: int,
    temporal: int,
    bounds: tuple[int, int],
    *,
    capped: bool = False,
) -> tuple[int, int]:
    """Height and width of a clip's frames after resizing; ``bounds`` (least, most) count all frames' pixels together.

    Raises ValueError for clips and sizes the engine refuses.
    """
    height, width = size
    fewest, most = bounds
    if frames < (1 if generation.single_frame else temporal):
        raise ValueError(f"a clip has {frames} frames, expected at least {temporal}")
    if height <= 0 or width <= 0:
        raise ValueError(f"size is {height}x{width}, expected positive sides")
    if height < factor or width < factor:
        if not generation.enlarges:
            raise ValueError(f"size is {height}x{width}, expected sides of at least {factor}")
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    check_sides(height, width)
    if capped:
        most = max(min(_CAP_PER_FRAME, most // frames), int(fewest * _CAP_SLACK)) * frames
    resized = round(height / factor) * factor, round(width / factor) * factor
    groups = round(frames / temporal) if generation.half_even else ceil(frames / temporal)
    volume = groups * temporal * resized[0] * resized[1]
    if volume > most:
        return shrink(height, width, factor, sqrt((frames * height * width) / most))
    if volume < fewest:
        return grow(height, width, factor, sqrt(fewest / (frames * height * width)))
    return resized
