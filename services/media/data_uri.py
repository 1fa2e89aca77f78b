"""``data:`` URIs as engines take them: base64 only. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

from services.kv.reason import Reason
from services.media.unusable import Unusable

_PREFIX = "data:"
_SPEC_LIMIT = 256
_TYPE = re.compile(r"[a-z0-9.+-]{1,64}/[a-z0-9.+-]{1,64}")
_STEP = 1 << 20
EMPTY = "data:,"
"""Stands in a body where the bytes travel by claim; the agent puts the real thing back."""


@dataclass(frozen=True, slots=True)
class DataUri:
    """The decoded form."""

    content_type: str
    data: bytes


def is_data_uri(url: str) -> bool:
    """Whether a URL carries its own bytes. The scheme may be in any case."""
    return url[: len(_PREFIX)].lower() == _PREFIX


def decoded_size(url: str) -> int:
    """Bytes the payload has, at the most: computed, not decoded."""
    return (len(url) - url.find(",") - 1) * 3 // 4


def parse_data_uri(url: str, max_bytes: int) -> DataUri:
    """Decode. Raises Unusable: decode_failed for what is no base64, too_large above the limit in bytes."""
    comma = url.find(",", 0, len(_PREFIX) + _SPEC_LIMIT)
    if comma < 0:
        raise Unusable(Reason.DECODE_FAILED, "data: URI without a comma, expected data:<type>;base64,<data>")
    content_type, *parameters = url[len(_PREFIX) : comma].lower().split(";")
    if not parameters or parameters[-1].strip() != "base64":
        raise Unusable(Reason.DECODE_FAILED, "data: URI that is not base64, expected data:<type>;base64,<data>")
    _check_size(decoded_size(url) - 2, max_bytes)
    try:
        data = _decode(url, comma + 1)
    except (binascii.Error, UnicodeEncodeError):
        raise Unusable(Reason.DECODE_FAILED, "data: URI whose base64 is broken") from None
    if not data:
        raise Unusable(Reason.DECODE_FAILED, "data: URI without any data")
    _check_size(len(data), max_bytes)
    return DataUri(content_type if _TYPE.fullmatch(content_type) else "application/octet-stream", data)


def _decode(url: str, start: int) -> bytes:
    """In steps: decoding holds the interpreter's lock, and other threads get in between."""
    if (len(url) - start) % 4 or url.endswith("==="):
        raise binascii.Error("padding that is missing or too much")
    pieces = []
    for begin in range(start, len(url), _STEP):
        piece = base64.b64decode(url[begin : begin + _STEP].encode("ascii"), validate=True)
        if begin + _STEP < len(url) and len(piece) < _STEP // 4 * 3:
            raise binascii.Error("padding before the end")
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def data_uri(content_type: str, data: bytes) -> str:
    """The canonical form of bytes in a body."""
    return f"data:{content_type or 'application/octet-stream'};base64,{base64.b64encode(data).decode()}"


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise Unusable(
            Reason.TOO_LARGE, f"data: URI of {size} bytes, the limit is {max_bytes} (KVROUTE_MEDIA_MAX_BYTES)"
        )
