"""Time that tests turn by hand."""

from __future__ import annotations


class FakeClock:
    """Starts at a fixed moment and moves only when told."""

    def __init__(self, now_ms: int = 1_767_225_600_000) -> None:
        self._now_ms = float(now_ms)
        self._monotonic = 1_000.0

    def now_ms(self) -> int:
        """Wall milliseconds."""
        return int(self._now_ms)

    def monotonic(self) -> float:
        """Seconds."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both hands forward."""
        self._monotonic += seconds
        self._now_ms += seconds * 1000

    def turn_back(self, seconds: float) -> None:
        """Move the wall hand back, as a correction of the machine's clock does; monotonic time stays."""
        self._now_ms -= seconds * 1000
