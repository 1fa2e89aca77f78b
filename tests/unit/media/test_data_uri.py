"""Decoding data: URIs, in steps when they are large."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kv.reason import Reason
from services.media.data_uri import data_uri, parse_data_uri
from services.media.unusable import Unusable

LIMIT = 1 << 20


@given(data=st.binary(min_size=1, max_size=60), steps=st.integers(1, 8))
def test_bytes_come_back_whatever_the_step(data: bytes, steps: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("services.media.data_uri._STEP", 4 * steps)
        assert parse_data_uri(data_uri("image/png", data), LIMIT).data == data


@given(text=st.text(alphabet="AB=+/!", max_size=24), steps=st.integers(1, 4))
def test_what_is_broken_at_once_is_broken_in_steps(text: str, steps: int) -> None:
    try:
        expected: bytes | None = base64.b64decode(text, validate=True) or None
    except ValueError:
        expected = None
    if len(text) % 4 or text.endswith("==="):
        expected = None  # Python's decoder overlooks padding that is too much
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("services.media.data_uri._STEP", 4 * steps)
        if expected is not None:
            assert parse_data_uri(f"data:image/png;base64,{text}", LIMIT).data == expected
            return
        with pytest.raises(Unusable) as caught:
            parse_data_uri(f"data:image/png;base64,{text}", LIMIT)
        assert caught.value.reason is Reason.DECODE_FAILED
