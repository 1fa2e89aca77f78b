"""The cache salts this agent has sent: old engines announce blocks without saying what is a salt. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable

KEPT = 10_000
GRACE_SECONDS = 2.0
"""A request's last blocks may be read this long after its answer."""


class Salts:
    """Remembers salts, and whether a salted request may be announcing blocks."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._sent: OrderedDict[str, None] = OrderedDict()
        self._running: Counter[str] = Counter()
        self._until = float("-inf")

    def __contains__(self, salt: object) -> bool:
        return salt in self._sent

    def begin(self, salt: str | None) -> None:
        """A request is sent."""
        if salt:
            self._sent[salt] = None
            self._sent.move_to_end(salt)
            if len(self._sent) > KEPT:
                self._sent.popitem(last=False)
            self._running[salt] += 1

    def end(self, salt: str | None) -> None:
        """It is answered."""
        if salt:
            self._running[salt] -= 1
            if self._running[salt] <= 0:
                del self._running[salt]
            self._until = self._monotonic() + GRACE_SECONDS

    def in_flight(self) -> bool:
        """Whether a salted request runs, or ran a moment ago."""
        return bool(self._running) or self._monotonic() < self._until
