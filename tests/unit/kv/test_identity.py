"""Media identities, bit-exact. The numbers without another source are those of docs/design.md, section 5."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from services.kv.identity import (
    array_identity,
    client_identity,
    engine_uuid,
    foreign_identity,
    is_ours,
    length_prefixed,
    parse_engine_uuid,
    scoped,
    url_identity,
    video_identity,
)

U64 = st.integers(min_value=0, max_value=2**64 - 1)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://example.com/a.png", 0x432B06447698EAF0),
        ("https://example.com/a.png?v=2", 0x1713542C1F1FB66D),
        ("data:image/png;base64,AAAA", 0xC4A60AB824C912A1),
    ],
)
def test_a_url_is_hashed_as_its_exact_bytes(url: str, expected: int) -> None:
    assert url_identity(url) == expected


def test_a_url_that_is_no_unicode_still_has_an_identity() -> None:
    assert url_identity("https://example.com/\ud800") != url_identity("https://example.com/\ud801")


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [((1, 2, 3), 6, 0x7A9BBCB11A898630), ((6, 4, 3), 72, 0x9788036ABF366C8B), ((4, 6, 3), 72, 0x8D01DA131275BBCF)],
)
def test_pixels_are_hashed_with_their_shape(shape: tuple[int, ...], size: int, expected: int) -> None:
    assert array_identity(shape, bytes(range(size))) == expected


def test_what_plain_pixels_lose_makes_the_identity_finer() -> None:
    plain = array_identity((1, 2, 3), bytes(6))
    with_alpha = array_identity((1, 2, 3), bytes(6), extra=(b"RGBA", bytes(8), b""))
    preimage = struct.pack("<4QB", 3, 1, 2, 3, 0) + bytes(6) + b"".join(map(length_prefixed, (b"RGBA", bytes(8), b"")))
    assert with_alpha == xxh3_64_intdigest(preimage)
    assert len({plain, with_alpha, array_identity((1, 2, 3), bytes(6), extra=(b"RGBA", bytes(7), b"\0"))}) == 3


def test_pixels_must_fit_their_shape() -> None:
    with pytest.raises(ValueError, match=r"5 bytes, expected 6 for shape \(1, 2, 3\)"):
        array_identity((1, 2, 3), bytes(5))


def test_a_video_is_hashed_with_its_sampling() -> None:
    def identity(**changes: object) -> int:
        about = {"source_fps": 25.0, "source_duration": 2.0, "sampled_timestamps": [0.0, 1.96], **changes}
        return video_identity(2, 1, 1, bytes(range(6)), **about)  # type: ignore[arg-type]

    assert identity() == 0xB1961423FA686C31
    assert identity(source_fps=25) == identity()
    assert len({identity(), identity(source_fps=24.0), identity(sampled_timestamps=[0.0, 1.92])}) == 3


def test_a_video_must_fit_its_shape_and_have_finite_numbers() -> None:
    with pytest.raises(ValueError, match="expected 6"):
        video_identity(2, 1, 1, b"", source_fps=1.0, source_duration=1.0, sampled_timestamps=[])
    with pytest.raises(ValueError, match="JSON"):
        video_identity(0, 1, 1, b"", source_fps=float("nan"), source_duration=1.0, sampled_timestamps=[])


def test_a_clients_word_counts_in_its_own_tenant_only() -> None:
    preimage = struct.pack("<Q", 1) + b"t" + struct.pack("<Q", 2) + b"id"
    assert client_identity("t", "id") == xxh3_64_intdigest(preimage)
    assert client_identity("ti", "d") != client_identity("t", "id")


class TestScope:
    def test_without_tenant_and_salt_the_identity_is_used_as_it_is(self) -> None:
        assert scoped(7) == scoped(7, "", None) == scoped(7, "", "") == 7

    def test_a_tenant_or_a_salt_separates(self) -> None:
        preimage = struct.pack("<QQ", 7, 1) + b"t" + struct.pack("<Q", 4) + b"salt"
        assert scoped(7, "t", "salt") == xxh3_64_intdigest(preimage)
        assert len({scoped(7), scoped(7, "t"), scoped(7, "", "t"), scoped(7, "t", "salt"), scoped(7, "tsalt")}) == 5

    def test_a_key_makes_it_keyed_blake2b_read_little_endian(self) -> None:
        preimage = struct.pack("<QQ", 7, 1) + b"t" + struct.pack("<Q", 0)
        digest = hashlib.blake2b(preimage, digest_size=8, key=b"secret").digest()
        assert scoped(7, "t", key=b"secret") == struct.unpack("<Q", digest)[0]

    def test_a_key_counts_even_without_a_tenant(self) -> None:
        assert scoped(7, key=b"secret") not in (7, scoped(7, key=b"other"))

    def test_a_long_key_is_reduced_not_refused(self) -> None:
        assert scoped(7, key=b"k" * 65) != scoped(7, key=b"k" * 64)


class TestEngine:
    def test_the_engine_is_told_sixteen_digits_and_forty_eight_zeros(self) -> None:
        assert engine_uuid(0xC4A60AB824C912A1) == "c4a60ab824c912a1" + "0" * 48
        assert engine_uuid(1) == "0" * 15 + "1" + "0" * 48

    @given(U64)
    def test_what_goes_out_comes_back(self, identity: int) -> None:
        assert is_ours(engine_uuid(identity))
        assert parse_engine_uuid(engine_uuid(identity)) == identity

    @pytest.mark.parametrize(
        "text",
        ["", "router-media-hash-0001", "A" * 16 + "0" * 48, "a" * 64, "a" * 16 + "0" * 47, "a" * 16 + "0" * 48 + "\n"],
    )
    def test_anything_else_is_foreign(self, text: str) -> None:
        assert not is_ours(text)
        assert parse_engine_uuid(text) == foreign_identity(text) == xxh3_64_intdigest(text.encode(), 1)
