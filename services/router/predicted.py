"""Blocks a slot is about to hold because a decision just sent their prompt there.

Events say so only once the engine has computed them. Until then a burst of requests with one new prefix would be
sprayed over all workers; so a decision's addresses count for its slot, apart from what events confirmed, from the
decision until two seconds after the first token (the events are there by then), and never past the deadline.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from services.router.kv_projection import IndexKey
from services.router.prefix_tree import PrefixTree
from services.router.slots import Attempt, SlotEpoch

LINGER_MS = 2000
"""How long a prediction outlives the first token."""


@dataclass(slots=True)
class _Prediction:
    life: SlotEpoch
    index: IndexKey
    addresses: Sequence[int]
    until_ms: int


class Predicted:
    """Predicted entries of all decisions in flight."""

    def __init__(self) -> None:
        self._trees: dict[IndexKey, PrefixTree[SlotEpoch]] = {}
        self._entries: dict[Attempt, _Prediction] = {}
        self._ends: list[tuple[int, Attempt]] = []

    def __len__(self) -> int:
        """Decisions that are predicted at the moment."""
        return len(self._entries)

    def add(
        self, attempt: Attempt, life: SlotEpoch, index: IndexKey, addresses: Sequence[int], deadline_ms: int
    ) -> None:
        """A decision was made. Another one for the same attempt takes its place."""
        self.drop(attempt)
        if not addresses:
            return
        self._trees.setdefault(index, PrefixTree()).add(life, addresses)
        self._entries[attempt] = _Prediction(life, index, addresses, deadline_ms)
        heapq.heappush(self._ends, (deadline_ms, attempt))

    def first_token(self, attempt: Attempt, now_ms: int) -> None:
        """The prompt is computed: the events say so from here on."""
        entry = self._entries.get(attempt)
        if entry is not None and now_ms + LINGER_MS < entry.until_ms:
            entry.until_ms = now_ms + LINGER_MS
            heapq.heappush(self._ends, (entry.until_ms, attempt))

    def drop(self, attempt: Attempt) -> None:
        """The attempt came to nothing."""
        entry = self._entries.pop(attempt, None)
        if entry is not None:
            tree = self._trees[entry.index]
            tree.remove(entry.life, entry.addresses)
            if not tree:
                del self._trees[entry.index]

    def expire(self, now_ms: int) -> None:
        """Drop what has had its time."""
        while self._ends and self._ends[0][0] <= now_ms:
            _, attempt = heapq.heappop(self._ends)
            entry = self._entries.get(attempt)
            if entry is not None and entry.until_ms <= now_ms:
                self.drop(attempt)

    def match(self, index: IndexKey, addresses: Sequence[int]) -> dict[SlotEpoch, int]:
        """Leading blocks of a prompt that are predicted, by slot. Call ``expire`` before."""
        tree = self._trees.get(index)
        return tree.match(addresses) if tree is not None else {}
