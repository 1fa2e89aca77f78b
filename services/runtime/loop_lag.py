"""Proof that nothing long runs on the event loop: how late timers are."""

from __future__ import annotations

import asyncio
from collections import deque

from services.runtime.metrics import LOOP_LAG_SECONDS

_EVERY_SECONDS = 0.05
_WINDOW_SECONDS = 10.0


class LoopLag:
    """Sleeps a little again and again and notes how much later it woke than it asked for."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()
        self.worst_ever = 0.0

    @property
    def worst(self) -> float:
        """Seconds, the worst of the last 10 s."""
        return max((lag for _, lag in self._seen), default=0.0)

    def note(self, now: float, lag: float) -> None:
        """Keep one observation."""
        while self._seen and (self._seen[0][0] < now - _WINDOW_SECONDS):
            self._seen.popleft()
        # Only observations that can still be the worst are kept.
        while self._seen and self._seen[-1][1] <= lag:
            self._seen.pop()
        self._seen.append((now, lag))
        self.worst_ever = max(self.worst_ever, lag)

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time() + _EVERY_SECONDS
            await asyncio.sleep(_EVERY_SECONDS)
            now = loop.time()
            self.note(now, max(0.0, now - asked))
            LOOP_LAG_SECONDS.set(self.worst)
