"""A clip's sampled frames as bytes, and as an engine takes them. Pure.

Packed: ``LP(picture)`` one after the other, LP(x) = u64 little-endian length ++ x. To an engine (vLLM): a ``data:`` URI
of base64 pictures with commas between, beside ``media_io_kwargs`` that say which frames of which video they are.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from struct import unpack_from
from typing import Any

from services.kv.identity import length_prefixed

FRAMES_TYPE = "application/x-kvroute-frames"
"""Content type of packed frames, which no engine ever sees."""

_LENGTH = 8


def pack_frames(pictures: Iterable[bytes]) -> bytes:
    """Encoded pictures as one string of bytes."""
    return b"".join(map(length_prefixed, pictures))


def unpack_frames(packed: bytes) -> list[bytes]:
    """The pictures. Raises ValueError for what is no packed frames."""
    pictures: list[bytes] = []
    at = 0
    while at < len(packed):
        if at + _LENGTH > len(packed):
            raise ValueError(f"packed frames end within a length, at {at} of {len(packed)} bytes")
        (size,) = unpack_from("<Q", packed, at)
        at += _LENGTH
        if at + size > len(packed):
            raise ValueError(f"packed frames end within frame {len(pictures)}, at {at} of {len(packed)} bytes")
        pictures.append(packed[at : at + size])
        at += size
    return pictures


def frames_uri(pictures: Iterable[bytes]) -> str:
    """The frames as an engine's ``video_url``. The type is that of the URI's form: pictures may be PNG."""
    return "data:video/jpeg;base64," + ",".join(base64.b64encode(picture).decode() for picture in pictures)


def frames_kwargs(indices: Sequence[int], *, fps: float, total_frames: int, duration: float) -> dict[str, Any]:
    """``media_io_kwargs`` of a video whose frames are handed over: exactly these, sampled from such a source."""
    return {
        "num_frames": len(indices), "fps": fps, "frames_indices": list(indices), "total_num_frames": total_frames,
        "duration": duration, "do_sample_frames": False,
    }  # fmt: skip
