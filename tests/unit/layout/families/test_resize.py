"""Qwen's smart resize against tables of the reference, ties and refusals included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.layout.families.resize import AspectRatioError, smart_resize
from tests.unit.layout.golden import golden

TABLES = [name for name, value in golden("bulk_qwen_image_resize").items() if "rows" in value]


@pytest.mark.parametrize("table", TABLES)
def test_images_resize_as_in_the_reference(table: str) -> None:
    data = golden("bulk_qwen_image_resize")[table]
    factor, least, most = (data["params"][name] for name in ("factor", "min_pixels", "max_pixels"))
    for height, width, *expected in data["rows"]:
        assert _or_none(smart_resize, height, width, factor, least, most) == expected, (height, width)


def test_ties_go_to_even() -> None:
    assert smart_resize(42, 70, 28, 1, 10**9) == (56, 56)


def test_a_ratio_of_200_is_accepted_and_more_is_not() -> None:
    assert smart_resize(200, 1, 28, 3136, 12845056)
    with pytest.raises(AspectRatioError, match="201x1"):
        smart_resize(201, 1, 28, 3136, 12845056)


@pytest.mark.parametrize("size", [(0, 10), (10, 0), (-1, 5)])
def test_sides_must_be_positive(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="positive"):
        smart_resize(*size, 28, 3136, 12845056)


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
