"""One slot's stream of KV events, and what the consumer must hold it to (docs/design.md, section 8).

* A lower epoch or a seq that was seen is ignored and counted; a higher epoch replaces the slot.
* A gap, or a resident proof that does not match, makes the slot uncertain: still used, and a snapshot is asked for
  after a random delay unless one comes first.
* A snapshot's parts stand in consecutive seqs with nothing between. They fill an invisible membership that takes the
  place of the old one at the last part. A snapshot that proves what is already known replaces nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from schemas.kv_event import KvChange, KvEvents, KvOp, KvSnapshot
from services.kv.tier import TIERS, Tier
from services.router.index import SLICE, PrefixIndex, Resident

SNAPSHOT_DELAY_SECONDS = 2.0
"""A snapshot is asked for after a random part of this: of many routers, the first one's request serves all."""
SNAPSHOT_PATIENCE_SECONDS = 12.0
"""Asked again after this (and another random delay): agents send at most one snapshot in 10 s."""


class Anomaly(StrEnum):
    """What a stream did that it should not, as a metric label."""

    OLD_EPOCH = "old_epoch"
    SEEN_SEQ = "seen_seq"
    GAP = "gap"
    RESIDENT_MISMATCH = "resident_mismatch"
    BROKEN_SNAPSHOT = "broken_snapshot"


@dataclass(slots=True)
class _Staging:
    """A snapshot of which not all parts are here yet."""

    id: int
    parts: int
    next_part: int
    pieces: list[tuple[Tier, list[int]]] = field(default_factory=list)


class SlotStream:
    """The consumer's state of one slot: one epoch at a time, in one index."""

    def __init__(
        self,
        index: PrefixIndex,
        epoch: int,
        *,
        random: Callable[[], float],
        count: Callable[[Anomaly], None] = lambda anomaly: None,
    ) -> None:
        """``random`` gives numbers in [0, 1); ``count`` hears of anomalies."""
        self.index = index
        self.epoch = epoch
        self.resident: Resident = index.join()
        self.next_seq = 0
        self.uncertain = False
        self.hybrid = False
        """The engine keeps several cache groups: overlaps are upper bounds."""
        self.closed = False
        self._random = random
        self._count = count
        self._staging: _Staging | None = None
        self._ask_at: float | None = None

    def close(self) -> None:
        """The slot is gone, or another epoch took its place: out of matches at once, a record half applied too."""
        self.closed = True
        self.index.leave(self.resident)

    def feed(self, event: KvEvents, now: float) -> Iterator[None]:
        """Apply one record of this epoch, a slice a step. ``now`` is monotonic seconds. Run it to its end."""
        if event.seq < self.next_seq:
            self._count(Anomaly.SEEN_SEQ)
            return
        if event.seq > self.next_seq:
            self._count(Anomaly.GAP)
            self._doubt(now)
            self._staging = None
        elif self._staging is not None and event.snapshot is None:
            self._count(Anomaly.BROKEN_SNAPSHOT)
            self._doubt(now)
            self._staging = None
        self.next_seq = event.seq + 1
        self.hybrid = event.hybrid
        if event.snapshot is not None:
            yield from self._take_part(event, event.snapshot, now)
        else:
            yield from self._change(event.changes)
        if not (self.uncertain or self.closed or self._staging) and not self._proven(self.resident, event):
            self._count(Anomaly.RESIDENT_MISMATCH)
            self._doubt(now)

    def wants_snapshot(self, now: float) -> bool:
        """Whether a snapshot should be asked for now. Saying yes starts the patience for it."""
        if self._ask_at is None or now < self._ask_at or self._staging is not None:
            return False
        self._ask_at = now + SNAPSHOT_PATIENCE_SECONDS + SNAPSHOT_DELAY_SECONDS * self._random()
        return True

    def _doubt(self, now: float) -> None:
        self.uncertain = True
        if self._ask_at is None:
            self._ask_at = now + SNAPSHOT_DELAY_SECONDS * self._random()

    def _change(self, changes: list[KvChange]) -> Iterator[None]:
        spent = 0
        for change in changes:
            if change.op is KvOp.CLEARED:
                for _ in self.index.clear(self.resident, change.tier):
                    yield
                    if self.closed:
                        return
                continue
            apply = self.index.store if change.op is KvOp.STORED else self.index.remove
            for start in range(0, len(change.addresses), SLICE):
                piece = change.addresses[start : start + SLICE]
                if spent + len(piece) > SLICE:
                    spent = 0
                    yield
                    if self.closed:
                        return
                apply(self.resident, change.tier, piece)
                spent += len(piece)

    def _take_part(self, event: KvEvents, part: KvSnapshot, now: float) -> Iterator[None]:
        staging = self._staging
        if part.part == 0:
            staging = self._staging = _Staging(part.id, part.parts, 0)
        if staging is None or (staging.id, staging.parts, staging.next_part) != (part.id, part.parts, part.part):
            self._count(Anomaly.BROKEN_SNAPSHOT)
            self._doubt(now)
            self._staging = None
            return
        staging.next_part += 1
        staging.pieces.append((part.tier, part.addresses))
        if staging.next_part < staging.parts:
            return
        if not self._proven(self.resident, event, whole=True):
            yield from self._install(staging)
        self._staging = None
        self.uncertain = False
        self._ask_at = None

    def _install(self, staging: _Staging) -> Iterator[None]:
        fresh = self.index.join(visible=False)
        spent = 0
        for tier, addresses in staging.pieces:
            for start in range(0, len(addresses), SLICE):
                piece = addresses[start : start + SLICE]
                if spent + len(piece) > SLICE:
                    spent = 0
                    yield
                    if self.closed:
                        self.index.leave(fresh)
                        return
                self.index.store(fresh, tier, piece)
                spent += len(piece)
        self.index.show(fresh)
        self.index.leave(self.resident)
        self.resident = fresh

    @staticmethod
    def _proven(resident: Resident, event: KvEvents, *, whole: bool = False) -> bool:
        """Whether counts and XORs are what the record says; ``whole``: all of them, and tiers left out are empty."""
        if event.resident is None:
            return not whole
        for tier in TIERS:
            stated = event.resident.get(tier)
            if stated is None:
                if whole and resident.proof(tier)[0]:
                    return False
            elif resident.proof(tier) != (stated.count, stated.xor):
                return False
        return True
