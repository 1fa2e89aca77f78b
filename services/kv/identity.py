"""Media identity: one 64-bit number saying which image or video a content part carries.

The rules (docs/design.md, section 5), bit-exact:

    url       XXH3_64(exact URL bytes)
    array     XXH3_64(u64 rank ++ u64 dims ++ u8 dtype ++ data [++ LP(x) for x in extra])
    video     XXH3_64(LP("video") ++ u64 4 ++ u64 T,H,W,3 ++ u8 0 ++ LP(JSON) ++ LP(RGB frames))
    client    XXH3_64(LP(tenant) ++ LP(uuid))
    frames    XXH3_64(LP("frames") ++ u64 identity)          a video that engines get as its frames
    scoped    H(u64 identity ++ LP(tenant) ++ LP(salt))      H = XXH3_64, or BLAKE2b-64 with a key
    foreign   XXH3_64(text; 1)

LP(x) = u64 length ++ x. Integers are little-endian. An identity may be finer than what an engine sees, never
coarser: two media that an engine could tell apart never share one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from math import prod
from struct import pack

from xxhash import xxh3_64, xxh3_64_intdigest

UINT8 = 0
"""Data type byte of 8-bit samples, the only one used by array identities of plain images."""

FOREIGN_SEED = 1
_OURS = re.compile(r"[0-9a-f]{16}0{48}")
_PADDING = "0" * 48


def length_prefixed(data: bytes) -> bytes:
    """``u64 length ++ data``: makes a concatenation unambiguous."""
    return pack("<Q", len(data)) + data


def url_identity(url: str) -> int:
    """Identity of a medium that is taken to be its URL, query string included; a ``data:`` URI is hashed as text.

    Lone surrogates, which no URL has, are hashed as WTF-8 rather than refused.
    """
    return xxh3_64_intdigest(url.encode("utf-8", "surrogatepass"))


def array_identity(shape: Sequence[int], data: bytes, *, dtype: int = UINT8, extra: Iterable[bytes] = ()) -> int:
    """Identity of decoded samples in C order, such as the RGB pixels of an image with shape ``(H, W, 3)``.

    ``extra`` carries what the plain pixels lose (mode, raw samples before compositing, palette, tRNS): each is
    length-prefixed and follows the data. Raises ValueError when an 8-bit array's data does not fit its shape.
    """
    return pieces_identity(shape, (data,), dtype=dtype, extra=extra)


def pieces_identity(
    shape: Sequence[int], pieces: Iterable[bytes], *, dtype: int = UINT8, extra: Iterable[bytes] = ()
) -> int:
    """The same for data that comes in pieces, such as bands of rows: no more than one has to be in memory."""
    digest = xxh3_64(pack(f"<{len(shape) + 1}QB", len(shape), *shape, dtype))
    found = 0
    for piece in pieces:
        digest.update(piece)
        found += len(piece)
    if dtype == UINT8 and found != prod(shape):
        raise ValueError(f"array data has {found} bytes, expected {prod(shape)} for shape {tuple(shape)}")
    for piece in extra:
        digest.update(length_prefixed(piece))
    return digest.intdigest()


class VideoDigest:
    """The identity of a sampled clip, fed one RGB frame at a time so that no more than one has to be in memory."""

    def __init__(
        self,
        frames: int,
        height: int,
        width: int,
        *,
        source_fps: float,
        source_duration: float,
        sampled_timestamps: Sequence[float],
    ) -> None:
        """``frames`` will follow, in order; times are in seconds. Raises ValueError for a number that is not finite."""
        about = json.dumps(
            {
                "source_fps": float(source_fps),
                "source_duration": float(source_duration),
                "sampled_timestamps": [float(stamp) for stamp in sampled_timestamps],
            },
            separators=(",", ":"),
            allow_nan=False,
        ).encode()
        self._shape = (frames, height, width, 3)
        self._left = prod(self._shape)
        self._digest = xxh3_64(length_prefixed(b"video"))
        self._digest.update(pack("<5QB", 4, *self._shape, UINT8))
        self._digest.update(length_prefixed(about))
        self._digest.update(pack("<Q", self._left))

    def add(self, data: bytes | memoryview) -> None:
        """The next frame, or several: RGB bytes in C order."""
        self._digest.update(data)
        self._left -= len(data)

    def identity(self) -> int:
        """The identity. Raises ValueError when the frames given do not fill the clip."""
        if self._left:
            shape = "x".join(map(str, self._shape))
            size = prod(self._shape)
            raise ValueError(f"video data has {size - self._left} bytes, expected {size} for {shape}")
        return self._digest.intdigest()


def video_identity(
    frames: int,
    height: int,
    width: int,
    data: bytes,
    *,
    source_fps: float,
    source_duration: float,
    sampled_timestamps: Sequence[float],
) -> int:
    """Identity of a sampled clip: ``data`` is ``frames`` RGB frames in C order, timestamps are in seconds.

    Raises ValueError when the data does not fit the shape or a number is not finite.
    """
    digest = VideoDigest(
        frames, height, width,
        source_fps=source_fps, source_duration=source_duration, sampled_timestamps=sampled_timestamps,
    )  # fmt: skip
    digest.add(data)
    return digest.identity()


def frames_identity(identity: int) -> int:
    """Identity of a video that travels as the frames which were hashed.

    An engine computes the same for it as for the file, under another name, and finds one by the other's blocks
    never. So the two have two identities.
    """
    return xxh3_64_intdigest(length_prefixed(b"frames") + pack("<Q", identity))


def client_identity(tenant: str, uuid: str) -> int:
    """Identity a trusted client states itself: its word counts within its own tenant only."""
    preimage = length_prefixed(_text(tenant)) + length_prefixed(_text(uuid))
    return xxh3_64_intdigest(preimage)


def scoped(identity: int, tenant: str = "", salt: str | None = None, key: bytes | None = None) -> int:
    """The identity used in addresses and told to the engine.

    Without a tenant, a salt or a key it is ``identity`` itself. With a key the hash is
    ``blake2b(preimage, digest_size=8, key=key)`` read as a little-endian u64: XXH3 can be collided on purpose and an
    engine's processor cache ignores salts. Keys over 64 bytes are first reduced by unkeyed BLAKE2b-512.
    """
    if not tenant and not salt and not key:
        return identity
    preimage = pack("<Q", identity) + length_prefixed(_text(tenant)) + length_prefixed(_text(salt or ""))
    if not key:
        return xxh3_64_intdigest(preimage)
    if len(key) > hashlib.blake2b.MAX_KEY_SIZE:
        key = hashlib.blake2b(key).digest()
    return int.from_bytes(hashlib.blake2b(preimage, digest_size=8, key=key).digest(), "little")


def engine_uuid(identity: int) -> str:
    """What the engine is told, so that its KV events carry it back: 16 hexadecimal digits and 48 zeros."""
    return f"{identity:016x}{_PADDING}"


def is_ours(text: str) -> bool:
    """Whether a media identifier in KV events has the form we forward."""
    return _OURS.fullmatch(text) is not None


def parse_engine_uuid(text: str) -> int:
    """Identity of a media identifier in KV events: ours, or a foreign one that never equals an image of ours."""
    return int(text[:16], 16) if is_ours(text) else foreign_identity(text)


def foreign_identity(text: str) -> int:
    """Identity of a medium the engine named itself: tracked, so that its blocks can be told apart."""
    return xxh3_64_intdigest(_text(text), FOREIGN_SEED)


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")
