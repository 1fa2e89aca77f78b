"""Sampled frames as bytes and as an engine takes them."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kv.frames import frames_kwargs, frames_uri, pack_frames, unpack_frames
from services.kv.identity import frames_identity


@given(st.lists(st.binary(max_size=20)))
def test_what_is_packed_is_unpacked(pictures: list[bytes]) -> None:
    assert unpack_frames(pack_frames(pictures)) == pictures


@pytest.mark.parametrize("damaged", [b"\0", pack_frames([b"abc"])[:-1], pack_frames([b"abc"]) + b"\1"])
def test_what_is_cut_off_is_none(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="packed frames end within"):
        unpack_frames(damaged)


def test_an_engine_gets_a_list_of_pictures_and_which_frames_they_are() -> None:
    head, _, payload = frames_uri([b"one", b"two"]).partition("base64,")
    assert head == "data:video/jpeg;"
    assert [base64.b64decode(picture) for picture in payload.split(",")] == [b"one", b"two"]
    assert frames_kwargs((0, 7), fps=29.97, total_frames=8, duration=0.267) == {
        "num_frames": 2, "fps": 29.97, "frames_indices": [0, 7], "total_num_frames": 8, "duration": 0.267,
        "do_sample_frames": False,
    }  # fmt: skip


@given(st.integers(0, 2**64 - 1))
def test_a_video_as_frames_has_an_identity_of_its_own(identity: int) -> None:
    assert frames_identity(identity) != identity
    assert 0 <= frames_identity(identity) < 2**64
