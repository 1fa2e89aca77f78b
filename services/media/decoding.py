"""Decodes media beside the event loop: in processes that are ended when they hang, or in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from services.kv.reason import Reason
from services.kv.sampling import Sampling
from services.media.frames import decode_with_frames
from services.media.pixels import Decoded, decode_image
from services.media.unusable import Unusable
from services.media.video import DecodedVideo, VideoBounds, decode_video
from services.runtime.offload import DecodePool, OffloadCrashed, OffloadTimeout

DECODE_SECONDS = 30.0
"""Far above what the largest image allowed takes; it ends a decoder that hangs."""

_GRACE_SECONDS = 5.0
"""A video's decoding looks at its own deadline after every frame; a process is ended this much later."""

_THREADS = 2

T = TypeVar("T")


class Decoding:
    """A pool of decoders. What waits for one waits outside, so that decoded pixels are bounded.

    A caller that is cancelled ends the process that worked for it; a thread goes on to its own deadline.
    """

    def __init__(self, processes: int) -> None:
        """``processes`` 0: threads, which is enough for url identity and simplest to run."""
        self._processes = processes
        self._pool: DecodePool | None = None
        self._gate = asyncio.Semaphore(processes or _THREADS)

    async def decode(self, data: bytes, max_pixels: int) -> Decoded:
        """Size and content identity of an image file. Raises Unusable."""
        return await self._run(DECODE_SECONDS, decode_image, data, max_pixels)

    async def decode_video(self, data: bytes, sampling: Sampling, bounds: VideoBounds) -> DecodedVideo:
        """Numbers, sampled frames and content identity of a video file. Raises Unusable."""
        return await self._run(bounds.seconds + _GRACE_SECONDS, decode_video, data, sampling, bounds)

    async def decode_frames(
        self, data: bytes, sampling: Sampling, bounds: VideoBounds, max_bytes: int
    ) -> tuple[DecodedVideo, bytes | None]:
        """The same, and the frames that were hashed, packed; None when they take more. Raises Unusable."""
        return await self._run(
            bounds.seconds + _GRACE_SECONDS, decode_with_frames, data, sampling, bounds, max_bytes
        )

    async def _run(self, seconds: float, fn: Callable[..., T], *args: Any) -> T:
        if self._pool is None:
            # Made at the first medium that must be decoded: url identity alone costs no process.
            self._pool = DecodePool(self._processes)
        async with self._gate:
            try:
                return await self._pool.run(fn, *args, seconds=seconds)
            except (OffloadTimeout, OffloadCrashed) as error:
                raise Unusable(Reason.DECODE_FAILED, f"the decoder gave up: {error}") from None

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.stop()
