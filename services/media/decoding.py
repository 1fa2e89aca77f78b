"""Decodes images beside the event loop: a few at a time, in processes or threads."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from services.kv.reason import Reason
from services.media.pixels import Decoded, decode_image
from services.media.unusable import Unusable

_THREADS = 2


class Decoding:
    """A pool of decoders. What is not being decoded waits outside, so that bytes are handed over one at a time."""

    def __init__(self, processes: int) -> None:
        """``processes`` 0: threads, which is enough for url identity and simplest to run."""
        self._processes = processes
        self._executor: Executor | None = None
        self._gate = asyncio.Semaphore(processes or _THREADS)

    async def decode(self, data: bytes, max_pixels: int) -> Decoded:
        """Size and content identity of an image file. Raises Unusable."""
        async with self._gate:
            try:
                return await asyncio.get_running_loop().run_in_executor(
                    self._pool(), decode_image, data, max_pixels
                )
            except BrokenProcessPool:
                # The kernel or a decoder bug killed the process: this image is not tried again, the next one gets a
                # new process.
                self.close()
                raise Unusable(Reason.DECODE_FAILED, "the decoder died over this image") from None

    def close(self) -> None:
        """Let the workers go."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    def _pool(self) -> Executor:
        """Made at the first image that must be decoded: url identity alone costs no process."""
        if self._executor is None:
            if self._processes:
                # Spawned, not forked: this process has threads and a broker connection.
                context = multiprocessing.get_context("spawn")
                self._executor = ProcessPoolExecutor(self._processes, mp_context=context)
            else:
                self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="decode")
        return self._executor
