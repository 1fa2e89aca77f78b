"""What each slot is busy with: prefill tokens, decode blocks, requests, by the decisions and facts in Kafka.

Decisions and lifecycle facts are different topics, so a first token or an end may be read before its decision. The
ledger is therefore a function of the *set* of facts about an attempt, not of their order: an attempt that ended books
nothing any more, one whose first token was seen books no prefill, and nothing is counted twice or goes below zero.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.router.kv_projection import IndexKey
from services.router.prefix_tree import PrefixTree
from services.router.recent import Recent
from services.router.slots import Attempt, SlotEpoch

REMEMBER_MS = 600_000
"""How long ended attempts are remembered: a booking read later than its end must stay without effect."""
GRACE_MS = 30_000
"""A booking without an end is given up this long after its deadline: whoever should have ended it is gone."""


@dataclass(frozen=True, slots=True)
class Booking:
    """What one attempt costs its slot."""

    life: SlotEpoch
    index: IndexKey
    prefill_tokens: int
    addresses: Sequence[int]
    unaddressed_blocks: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """Sums over a slot's open bookings. ``blocks`` counts one that several prompts share once."""

    prefill_tokens: int = 0
    blocks: int = 0
    requests: int = 0


@dataclass(slots=True)
class _Account:
    prefilling: dict[Attempt, int] = field(default_factory=dict)
    prefill_tokens: int = 0
    unaddressed: int = 0
    requests: int = 0


_IDLE = SlotLoad()


class Ledger:
    """Open bookings of all slots, keyed by attempt."""

    def __init__(self) -> None:
        self._open: dict[Attempt, Booking] = {}
        self._accounts: dict[SlotEpoch, _Account] = {}
        self._trees: dict[IndexKey, PrefixTree[SlotEpoch]] = {}
        self._started: Recent[Attempt] = Recent(REMEMBER_MS)
        self._ended: Recent[Attempt] = Recent(REMEMBER_MS)
        self._deadlines: list[tuple[int, Attempt]] = []

    def __len__(self) -> int:
        """Open bookings."""
        return len(self._open)

    def holds(self, attempt: Attempt) -> bool:
        """Whether the attempt is booked at the moment."""
        return attempt in self._open

    def started(self, attempt: Attempt) -> bool:
        """Whether the attempt's first token was seen, be it booked or not."""
        return attempt in self._started

    def book(self, attempt: Attempt, booking: Booking) -> None:
        """A decision counts from now on, unless its end is known. For another slot than before, it moves there."""
        if attempt in self._ended:
            return
        known = self._open.get(attempt)
        if known is not None:
            if known.life == booking.life:
                return
            self._release(attempt)
        self._open[attempt] = booking
        account = self._accounts.setdefault(booking.life, _Account())
        account.requests += 1
        account.unaddressed += booking.unaddressed_blocks
        if attempt not in self._started:
            account.prefilling[attempt] = booking.prefill_tokens
            account.prefill_tokens += booking.prefill_tokens
        self._trees.setdefault(booking.index, PrefixTree()).add(booking.life, booking.addresses)
        heapq.heappush(self._deadlines, (booking.deadline_ms + GRACE_MS, attempt))

    def first_token(self, attempt: Attempt, now_ms: int) -> None:
        """The attempt's prefill is over."""
        if attempt in self._started:
            return
        self._started.add(attempt, now_ms)
        booking = self._open.get(attempt)
        if booking is not None:
            self._end_prefill(attempt, self._accounts[booking.life])

    def close(self, attempt: Attempt, now_ms: int) -> None:
        """The attempt ended, however: all it held is free."""
        if attempt not in self._ended:
            self._ended.add(attempt, now_ms)
        if attempt in self._open:
            self._release(attempt)

    def close_life(self, life: SlotEpoch, now_ms: int) -> None:
        """A slot's life ended: so did all its attempts."""
        if life in self._accounts:
            for attempt in [attempt for attempt, booking in self._open.items() if booking.life == life]:
                self.close(attempt, now_ms)

    def expire(self, now_ms: int) -> None:
        """Give up bookings that are long past their deadline, and forget old ends."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, attempt = heapq.heappop(self._deadlines)
            if attempt in self._open:
                self.close(attempt, now_ms)
        self._started.forget(now_ms)
        self._ended.forget(now_ms)

    def load(self, life: SlotEpoch) -> SlotLoad:
        """What the slot is busy with."""
        account = self._accounts.get(life)
        if account is None:
            return _IDLE
        shared = sum(tree.blocks(life) for tree in self._trees.values())
        return SlotLoad(account.prefill_tokens, shared + account.unaddressed, account.requests)

    def active(self, index: IndexKey, addresses: Sequence[int]) -> dict[SlotEpoch, int]:
        """Leading blocks of a prompt that are active, by slot."""
        tree = self._trees.get(index)
        return tree.match(addresses) if tree is not None else {}

    def _release(self, attempt: Attempt) -> None:
        booking = self._open.pop(attempt)
        account = self._accounts[booking.life]
        account.requests -= 1
        account.unaddressed -= booking.unaddressed_blocks
        self._end_prefill(attempt, account)
        if not account.requests:
            del self._accounts[booking.life]
        tree = self._trees[booking.index]
        tree.remove(booking.life, booking.addresses)
        if not tree:
            del self._trees[booking.index]

    @staticmethod
    def _end_prefill(attempt: Attempt, account: _Account) -> None:
        account.prefill_tokens -= account.prefilling.pop(attempt, 0)
