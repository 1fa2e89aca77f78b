"""Numbers a slot's record stream: changes and snapshots become ``kv-events`` records in one order. Pure.

Consumers trust two things: ``seq`` has no holes, and ``resident`` after a record equals what they hold after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import xor

from schemas.kv_event import KvChange, KvEvents, KvOp, KvSnapshot, Resident
from schemas.types import WorkerId
from services.kv.tier import TIERS, Tier
from services.worker.resident import Change

MAX_CHANGE_ADDRESSES = 4_096
MAX_SNAPSHOT_ADDRESSES = 16_384
"""The protocol allows 60,000; encoding such a part would hold the event loop for 12 ms."""


@dataclass(frozen=True, slots=True)
class SlotName:
    """Whose stream it is."""

    worker_id: WorkerId
    dp_rank: int
    epoch: int
    model: str
    block_size: int


class Sequencer:
    """Makes the records of one slot in one epoch. What it has numbered counts as sent: nothing may be left out."""

    def __init__(self, slot: SlotName) -> None:
        self.slot = slot
        self.next_seq = 0
        self._count = dict.fromkeys(TIERS, 0)
        self._xor = dict.fromkeys(TIERS, 0)

    def snapshot(
        self, held: Mapping[Tier, Iterable[int]], *, unknown: int, complete: bool, hybrid: bool = False
    ) -> Iterator[KvEvents]:
        """The whole set in consecutive records; ``resident`` stands on the last. The stream's first must be one.

        The set is read at the first step; until the last nothing else may be numbered.
        """
        pieces: list[tuple[Tier, list[int]]] = []
        for tier in TIERS:
            addresses = list(held.get(tier, ()))
            self._count[tier] = len(addresses)
            self._xor[tier] = _xor(addresses)
            pieces += [
                (tier, addresses[start : start + MAX_SNAPSHOT_ADDRESSES])
                for start in range(0, len(addresses), MAX_SNAPSHOT_ADDRESSES)
            ]
        pieces = pieces or [(Tier.DEVICE, [])]
        name = self.next_seq
        for part, (tier, addresses) in enumerate(pieces):
            last = part == len(pieces) - 1
            yield self._record(
                snapshot=KvSnapshot(id=name, part=part, parts=len(pieces), tier=tier, addresses=addresses),
                resident=self._resident() if last else None,
                unknown=unknown,
                complete=complete,
                hybrid=hybrid,
            )

    def changes(
        self, log: Iterable[Change], *, unknown: int, complete: bool, hybrid: bool = False
    ) -> list[KvEvents]:
        """The changes in records of at most 4,096 addresses each. Raises ValueError before the first snapshot."""
        if not self.next_seq:
            raise ValueError(f"slot {self.slot.worker_id}/{self.slot.dp_rank}: seq 0 must be a snapshot")
        records = []
        for portion in _portions(log):
            for change in portion:
                self._count_in(change)
            records.append(
                self._record(
                    changes=portion, resident=self._resident(), unknown=unknown, complete=complete, hybrid=hybrid
                )
            )
        return records

    def _count_in(self, change: KvChange) -> None:
        tier = change.tier
        if change.op is KvOp.CLEARED:
            self._count[tier] = self._xor[tier] = 0
            return
        self._count[tier] += len(change.addresses) if change.op is KvOp.STORED else -len(change.addresses)
        self._xor[tier] ^= _xor(change.addresses)

    def _resident(self) -> dict[Tier, Resident]:
        return {tier: Resident(count=self._count[tier], xor=self._xor[tier]) for tier in TIERS}

    def _record(
        self, *, unknown: int, complete: bool, hybrid: bool, changes: list[KvChange] | None = None,
        snapshot: KvSnapshot | None = None, resident: dict[Tier, Resident] | None = None,
    ) -> KvEvents:
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        slot = self.slot
        return KvEvents(
            worker_id=slot.worker_id, dp_rank=slot.dp_rank, epoch=slot.epoch, seq=seq, model=slot.model,
            block_size=slot.block_size, changes=changes or [], snapshot=snapshot, resident=resident, unknown=unknown,
            complete=complete,
            hybrid=hybrid,
        )


def _portions(log: Iterable[Change]) -> Iterator[list[KvChange]]:
    portion: list[KvChange] = []
    room = MAX_CHANGE_ADDRESSES
    for change in log:
        addresses = change.addresses
        start = 0
        while start < len(addresses) or change.op is KvOp.CLEARED:
            piece = addresses[start : start + room]
            portion.append(KvChange(op=change.op, tier=change.tier, addresses=piece))
            start += len(piece)
            room -= max(1, len(piece))
            if room <= 0:
                yield portion
                portion, room = [], MAX_CHANGE_ADDRESSES
            if change.op is KvOp.CLEARED:
                break
    if portion:
        yield portion


def _xor(addresses: Iterable[int]) -> int:
    return reduce(xor, addresses, 0)
