"""Counting the values of a JSON text without parsing it."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime.json_bounds import has_more_values

VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab\\"[]{},:é\0', max_size=12),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(alphabet='ab\\",[', max_size=6), inner),
    max_leaves=40,
)


def values_in(value: Any) -> int:
    """The long way."""
    if isinstance(value, list):
        return 1 + sum(map(values_in, value))
    if isinstance(value, dict):
        return 1 + sum(map(values_in, value.values()))
    return 1


@given(value=VALUES, step=st.integers(2, 40), ascii_only=st.booleans())
def test_it_misses_none_and_takes_no_text_for_values(value: Any, step: int, ascii_only: bool) -> None:
    """Wherever the text is cut into steps. Empty containers count twice."""
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    count = values_in(value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("services.runtime.json_bounds._STEP", step)
        assert has_more_values(raw, count - 1)
        assert not has_more_values(raw, 2 * count)


@pytest.mark.parametrize(
    ("raw", "more"),
    [
        (b"[" + b",".join([b"[]"] * 5_000_000) + b"]", True),
        (b'{"a":[' + b",".join([b"1"] * 300_000) + b"]}", True),
        (b'{"url":"' + b"[,{" * 5_000_000 + b'"}', False),
        (b'{"text":"' + b'\\"[],' * 3_000_000 + b'"}', False),
        (b'{"text":"' + b"\\\\" * 8_000_000 + b'"}', False),
        (b'"' * 16_000_000, False),
        (orjson.dumps({"messages": [{"role": "user", "content": "Hello, you"}] * 20_000}), False),
    ],
)
def test_large_texts(raw: bytes, more: bool) -> None:
    assert has_more_values(raw) is more
