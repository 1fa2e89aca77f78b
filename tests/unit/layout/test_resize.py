"""Qwen's smart resize against tables of the reference, ties and refusals included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.layout.families.qwen import PixelBounds
from services.layout.families.qwen2_vl import video_grid as qwen2_grid
from services.layout.families.resize import AspectRatioError, smart_resize, smart_resize_clip
from tests.unit.layout.golden import golden

TABLES = [name for name, value in golden("bulk_qwen_image_resize").items() if "rows" in value]


@pytest.mark.parametrize("table", TABLES)
def test_images_resize_as_in_the_reference(table: str) -> None:
    data = golden("bulk_qwen_image_resize")[table]
    factor, least, most = (data["params"][name] for name in ("factor", "min_pixels", "max_pixels"))
    for height, width, *expected in data["rows"]:
        assert _or_none(smart_resize, height, width, factor, least, most) == expected, (height, width)


def test_clips_resize_as_in_the_reference() -> None:
    data = golden("bulk_qwen_video_resize")["qwen3_video"]
    bounds = (data["params"]["factor"], data["params"]["temporal_factor"])
    limits = (data["params"]["min_pixels"], data["params"]["max_pixels"])
    for frames, height, width, *expected in data["rows"]:
        found = _or_none(smart_resize_clip, frames, height, width, *bounds, *limits)
        assert found == expected[:2], (frames, height, width)


def test_ties_go_to_even() -> None:
    assert smart_resize(42, 70, 28, 1, 10**9) == (56, 56)
    assert smart_resize_clip(5, 320, 320, 32, 2, 1, 4 * 320 * 320) == (320, 320)  # 5 frames count as 4


def test_a_ratio_of_200_is_accepted_and_more_is_not() -> None:
    assert smart_resize(200, 1, 28, 3136, 12845056)
    with pytest.raises(AspectRatioError, match="201x1"):
        smart_resize(201, 1, 28, 3136, 12845056)


@pytest.mark.parametrize("size", [(0, 10), (10, 0), (-1, 5)])
def test_sides_must_be_positive(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="positive"):
        smart_resize(*size, 28, 3136, 12845056)
    with pytest.raises(ValueError, match="positive"):
        smart_resize_clip(2, *size, 32, 2, 4096, 25165824)


def test_a_clip_needs_a_frame() -> None:
    bounds = PixelBounds(3136, 12845056, 14, 2, 2)
    with pytest.raises(ValueError, match="0 frames"):
        qwen2_grid(0, 64, 64, bounds)
    with pytest.raises(ValueError, match="1 frames, expected at least 2"):
        smart_resize_clip(1, 64, 64, 32, 2, 4096, 25165824)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_the_result_is_whole_tokens_within_the_budget(height: int, width: int) -> None:
    if max(height, width) / min(height, width) > 200:
        return
    resized = smart_resize(height, width, 32, 65536, 16777216)
    assert all(side > 0 and side % 32 == 0 for side in resized)
    assert resized[0] * resized[1] >= 65536
    if height * width > 65536:
        assert resized[0] * resized[1] <= max(16777216, height * width)


def _or_none(resize: Callable[..., tuple[int, int]], *arguments: int) -> list[int | None]:
    try:
        return list(resize(*arguments))
    except ValueError:
        return [None, None]
