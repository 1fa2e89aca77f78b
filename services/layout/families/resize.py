"""Qwen's smart resize: to multiples of a factor, within a budget of pixels. Exact, ties to even included.

The order of operations is the reference's (transformers, qwen2_vl and qwen3_vl): float64, ``round`` is half-even.
"""

from __future__ import annotations

from math import ceil, floor, sqrt

MAX_RATIO = 200
"""Long side over short side; exactly 200 is accepted."""


class AspectRatioError(ValueError):
    """The image is too thin for the model: an engine answers with an error."""


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width after resizing, pixels, multiples of ``factor``; a side may be 0 for sizes under half a factor.

    Raises AspectRatioError when the sides' ratio is over 200, ValueError when a side is not positive.
    """
    check_sides(height, width)
    resized = round(height / factor) * factor, round(width / factor) * factor
    area = resized[0] * resized[1]
    if area > max_pixels:
        return shrink(height, width, factor, sqrt((height * width) / max_pixels))
    if area < min_pixels:
        return grow(height, width, factor, sqrt(min_pixels / (height * width)))
    return resized


def shrink(height: int, width: int, factor: int, beta: float) -> tuple[int, int]:
    """Sides divided by ``beta``, down to multiples of ``factor``, at least one each."""
    return (
        max(factor, floor(height / beta / factor) * factor),
        max(factor, floor(width / beta / factor) * factor),
    )


def grow(height: int, width: int, factor: int, beta: float) -> tuple[int, int]:
    """Sides times ``beta``, up to multiples of ``factor``."""
    return ceil(height * beta / factor) * factor, ceil(width * beta / factor) * factor


def check_sides(height: int, width: int) -> None:
    """Raises AspectRatioError when the sides' ratio is over 200, ValueError when a side is not positive."""
    if height <= 0 or width <= 0:
        raise ValueError(f"size is {height}x{width}, expected positive sides")
    if max(height, width) / min(height, width) > MAX_RATIO:
        raise AspectRatioError(f"size is {height}x{width}, expected a ratio of sides of at most {MAX_RATIO}")
