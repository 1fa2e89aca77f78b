"""Time as an argument: stages take a clock, tests give them one they turn by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall and monotonic time."""

    def now_ms(self) -> int:
        """Wall milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Wall milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()
