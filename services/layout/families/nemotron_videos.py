"""How Nemotron Nano sizes video frames, and the text that stands before each group of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

PATCHES_PER_TOKEN = 4


def frame_grid(height: int, width: int, target: int, *, keep_aspect: bool) -> tuple[int, int]:
    """Rows and columns of patches of a frame: about ``target`` in all, both even. Square unless the aspect is kept."""
    if not keep_aspect:
        side = max(2, int(sqrt(target)) // 2 * 2)
        return side, side
    aspect = width / height
    rows, columns = max(1, round(sqrt(target / aspect))), max(1, round(sqrt(target * aspect)))
    up = rows + rows % 2, columns + columns % 2
    if up[0] * up[1] <= target:
        return up
    return max(2, rows - rows % 2), max(2, columns - columns % 2)


def frame_seconds(indices: Sequence[int], fps: float) -> list[float]:
    """Seconds of frames in the source, by a frame duration in whole milliseconds.

    Raises ZeroDivisionError for a rate of 0.
    """
    milliseconds = int(1000 / fps)
    return [index * milliseconds / 1000.0 for index in indices]


def separators(seconds: Sequence[float], per_group: int) -> list[str]:
    """The text before each group of ``per_group`` frames; the last group may have fewer."""
    texts = []
    for first in range(0, len(seconds), per_group):
        frames = [
            f"frame {number + 1} sampled at {seconds[number]:.2f} seconds"
            for number in range(first, min(first + per_group, len(seconds)))
        ]
        text = " and ".join(frames)
        texts.append(("\n" if first else "") + "F" + text[1:] + ": ")
    return texts
