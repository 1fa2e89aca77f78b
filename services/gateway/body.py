"""Reads a body up to a limit, without ever holding more than that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from services.gateway.admission import Admission
from services.runtime.errors import Refused

READ_SECONDS = 60.0
"""How long a client may take to send its body."""


class Held:
    """Bytes counted by admission."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.size = 0

    def grow(self, size: int) -> None:
        """Count more. Raises TooBusy."""
        self._admission.take_bytes(size)
        self.size += size

    def release(self) -> None:
        """Give all of it back."""
        self._admission.give_back(self.size)
        self.size = 0


@contextmanager
def held(admission: Admission) -> Iterator[Held]:
    """Give the bytes back at the end."""
    holding = Held(admission)
    try:
        yield holding
    finally:
        holding.release()


async def read_limited(request: web.Request, limit: int, holding: Held) -> bytes:
    """The whole body. Raises Refused: 413 as soon as it is known to be too large, 408 when it does not come."""
    if request.content_length is not None and request.content_length > limit:
        raise _too_large(limit)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(READ_SECONDS):
            async for piece in request.content.iter_any():
                size += len(piece)
                if size > limit:
                    raise _too_large(limit)
                holding.grow(len(piece))
                pieces.append(piece)
    except (HttpProcessingError, web.RequestPayloadError):
        raise Refused(
            400, "the body does not come as its Content-Encoding or Transfer-Encoding says", code="invalid_body"
        ) from None
    except TimeoutError:
        raise Refused(408, f"the body did not come within {READ_SECONDS:g} s", code="body_timeout") from None
    return b"".join(pieces)


def _too_large(limit: int) -> Refused:
    return Refused(
        413, f"the body has more than {limit} bytes (KVROUTE_GATEWAY_MAX_BODY_BYTES)", code="body_too_large"
    )
