"""A bound on the bytes of media that requests hold on their way to the engine: who finds no room waits its turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class PayloadRoom:
    """Counts bytes held. First come, first served; one that is larger than all the room gets it alone."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.held = 0

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Hold so many bytes; wait while there is no room for them. Nothing is held twice by the same request."""
        size = min(size, self._limit)
        await self._take(size)
        try:
            yield
        finally:
            self._give_back(size)

    async def _take(self, size: int) -> None:
        if not self._waiting and self.held + size <= self._limit:
            self.held += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(size)
            else:
                self._waiting.remove((size, turn))
                self._serve()
            raise

    def _give_back(self, size: int) -> None:
        self.held -= size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self.held + self._waiting[0][0] <= self._limit:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.held += size
                turn.set_result(None)
