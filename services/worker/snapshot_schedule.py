"""When a slot's whole set is published again. Pure: monotonic seconds and randomness come in."""

from __future__ import annotations

from collections.abc import Callable

ASKED_SECONDS = 10.0
"""A snapshot is given on demand at most this often."""

SPREAD = 0.2


class SnapshotSchedule:
    """At the start, every ``period`` seconds ± 20 % (so that a fleet's snapshots spread out), and when asked."""

    def __init__(self, period: float, uniform: Callable[[float, float], float]) -> None:
        """``uniform`` draws from an interval, as ``random.uniform`` does."""
        self._period = period
        self._uniform = uniform
        self._last: float | None = None
        self._due = float("-inf")

    @property
    def due_at(self) -> float:
        """The moment from which a snapshot is due."""
        return self._due

    def due(self, now: float) -> bool:
        """Whether a snapshot is due."""
        return now >= self._due

    def ask(self, now: float) -> None:
        """Somebody missed something: soon, but not sooner than 10 s after the last one."""
        soon = now if self._last is None else max(now, self._last + ASKED_SECONDS)
        self._due = min(self._due, soon)

    def need(self, now: float) -> None:
        """We dropped changes ourselves: at once."""
        self._due = min(self._due, now)

    def taken(self, now: float) -> None:
        """A snapshot was taken."""
        self._last = now
        self._due = now + self._period * self._uniform(1 - SPREAD, 1 + SPREAD)
