"""A bound on the bytes of media a stage holds at once, over all requests. Pure."""

from __future__ import annotations

from types import TracebackType

from services.kv.reason import Reason
from services.media.unusable import Unusable


class MemoryBudget:
    """Counts bytes held. Nothing waits for it: waiting while holding could lock all requests into one another."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def hold(self) -> Hold:
        """A share to grow, given back when its ``with`` ends."""
        return Hold(self)

    def take(self, size: int) -> None:
        """Count bytes. Raises Unusable (budget_exceeded)."""
        if self.held + size > self._limit:
            raise Unusable(
                Reason.BUDGET_EXCEEDED,
                f"media being handled hold {self.held} bytes, the limit is {self._limit} (KVROUTE_MEDIA_MEMORY_BYTES)",
            )
        self.held += size

    def give_back(self, size: int) -> None:
        """Stop counting bytes."""
        self.held -= size


class Hold:
    """The bytes one medium holds."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._size = 0

    def grow(self, size: int) -> None:
        """Hold more. Raises Unusable (budget_exceeded)."""
        self._budget.take(size)
        self._size += size

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget.give_back(self._size)
        self._size = 0
