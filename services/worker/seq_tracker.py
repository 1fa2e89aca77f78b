"""What a batch's seq says: the next one, one we have, one after a hole, or the first of a new engine process. Pure."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """How a batch stands to those before it."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    GAP = "gap"
    RESTARTED = "restarted"


class SeqTracker:
    """Follows the seq of one rank. An engine process counts its batches from 0."""

    def __init__(self) -> None:
        self.last: int | None = None
        self._last_at = float("-inf")

    @property
    def expected(self) -> int:
        """The seq that comes next."""
        return 0 if self.last is None else self.last + 1

    def judge(self, seq: int, at: float) -> Verdict:
        """Judge a batch by its seq and by the engine's clock in it (seconds); does not move on."""
        if seq >= self.expected:
            return Verdict.NEXT if seq == self.expected else Verdict.GAP
        # A batch that came both by replay and live is as old as it was; a new process speaks later.
        return Verdict.DUPLICATE if at <= self._last_at else Verdict.RESTARTED

    @property
    def again(self) -> int:
        """Where to ask for a replay that shows whether the engine still is the same process: at the last we have."""
        return self.last or 0

    def took(self, seq: int, at: float) -> None:
        """A batch was applied."""
        self.last = seq
        self._last_at = max(self._last_at, at)
