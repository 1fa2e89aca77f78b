"""When a failed try is repeated. Pure: randomness comes in as a number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between the tries of one record: ``first``, then ``factor`` times as long each, at most ``longest``."""

    tries: int = 5
    first: float = 0.1
    factor: float = 3.0
    longest: float = 10.0

    def wait(self, failed: int, chance: float = 0.5) -> float | None:
        """Seconds to wait after ``failed`` tries (1, 2, …), ±20 % by ``chance`` in [0, 1); None: no more tries."""
        if failed > self.tries:
            return None
        seconds = min(self.longest, self.first * self.factor ** (failed - 1))
        return seconds * (0.8 + 0.4 * chance)
