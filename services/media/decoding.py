"""Decodes images beside the event loop: in processes that are ended when they hang, or in threads."""

from __future__ import annotations

import asyncio

from services.kv.reason import Reason
from services.media.pixels import Decoded, decode_image
from services.media.unusable import Unusable
from services.runtime.offload import DecodePool, OffloadCrashed, OffloadTimeout

DECODE_SECONDS = 30.0
"""Far above what the largest image allowed takes; it ends a decoder that hangs."""

_THREADS = 2


class Decoding:
    """A pool of decoders. What waits for one waits outside, so that decoded pixels are bounded."""

    def __init__(self, processes: int) -> None:
        """``processes`` 0: threads, which is enough for url identity and simplest to run."""
        self._processes = processes
        self._pool: DecodePool | None = None
        self._gate = asyncio.Semaphore(processes or _THREADS)

    async def decode(self, data: bytes, max_pixels: int) -> Decoded:
        """Size and content identity of an image file. Raises Unusable."""
        if self._pool is None:
            # Made at the first image that must be decoded: url identity alone costs no process.
            self._pool = DecodePool(self._processes)
        async with self._gate:
            try:
                return await self._pool.run(decode_image, data, max_pixels, seconds=DECODE_SECONDS)
            except (OffloadTimeout, OffloadCrashed) as error:
                raise Unusable(Reason.DECODE_FAILED, f"the decoder gave up: {error}") from None

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.stop()
