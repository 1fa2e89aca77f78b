"""Which offset of a partition may be committed when records finish out of order: the lowest unfinished one."""

from __future__ import annotations

from bisect import insort
from collections import deque


class Watermark:
    """Offsets of one partition that were taken, and which of them are finished. Pure."""

    def __init__(self) -> None:
        self._open: deque[int] = deque()
        self._finished: set[int] = set()
        self._next: int | None = None

    def take(self, offset: int) -> bool:
        """Note a record that is taken. False when it is already here (the broker sent it twice)."""
        if self._open and offset <= self._open[-1]:
            if offset in self._open:
                return False
            # Only after the consumer was set back: order holds, so that the lowest stays the lowest.
            ordered = list(self._open)
            insort(ordered, offset)
            self._open = deque(ordered)
        else:
            self._open.append(offset)
        return True

    def finish(self, offset: int) -> None:
        """Note a record that needs no redelivery: handled, or in the dead letters."""
        self._finished.add(offset)
        while self._open and self._open[0] in self._finished:
            lowest = self._open.popleft()
            self._finished.remove(lowest)
            self._next = lowest + 1

    @property
    def committable(self) -> int | None:
        """The offset to commit: everything below it is finished. None before anything was taken."""
        return self._open[0] if self._open else self._next

    @property
    def span(self) -> int:
        """Records from the lowest unfinished to the newest: what would be redelivered after a kill."""
        return len(self._open)
