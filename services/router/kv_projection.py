"""The KV events of all slots, applied to the indexes: one index per model and block size, one stream per slot.

Records are applied in the order they come, in slices: what one call cannot finish waits in a queue, so a snapshot of
60,000 addresses holds an event loop no longer than a small change does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from schemas.kv_event import KvEvents
from services.router.index import PrefixIndex
from services.router.slot_stream import Anomaly, SlotStream
from services.router.slots import NO_OVERLAP, Overlap, Slot, SlotEpoch

RECORDS_A_SLICE = 4
"""Small records applied in one go, when several wait. Agents put at most 4,096 addresses into a change."""

_DONE = object()

IndexKey = tuple[str, int]
"""Model and block size."""


class Held(NamedTuple):
    """What one slot holds of a prompt, and how sure that is."""

    overlap: Overlap = NO_OVERLAP
    uncertain: bool = False
    """Events were missed: there may be more or less."""
    upper_bound: bool = False
    """The engine keeps several cache groups and reuses a prefix only where all have it: there may be less."""


NOTHING_HELD = Held()


class CacheMatch:
    """What an index says of one prompt, slot by slot, at the moment it was asked."""

    __slots__ = ("_overlaps", "_streams")

    def __init__(self, overlaps: Mapping[int, Overlap], streams: Mapping[Slot, SlotStream]) -> None:
        self._overlaps = overlaps
        self._streams = streams

    def of(self, slot: Slot, epoch: int) -> Held:
        """What the slot holds. Another epoch's blocks are no overlap."""
        stream = self._streams.get(slot)
        if stream is None or stream.epoch != epoch:
            return NOTHING_HELD
        return Held(self._overlaps.get(stream.resident.number, NO_OVERLAP), stream.uncertain, stream.hybrid)


class KvProjection:
    """All slots' streams and indexes. Pure: records, monotonic seconds and random numbers come in as arguments."""

    def __init__(self, *, random: Callable[[], float]) -> None:
        """``random`` gives numbers in [0, 1)."""
        self._random = random
        self.indexes: dict[IndexKey, PrefixIndex] = {}
        self.streams: dict[Slot, SlotStream] = {}
        self._homes: dict[Slot, IndexKey] = {}
        self._members: dict[IndexKey, dict[Slot, SlotStream]] = {}
        self._retired: dict[Slot, int] = {}
        self.anomalies: Counter[Anomaly] = Counter()
        self.positions: dict[int, int] = {}
        self._queue: deque[tuple[int, int, Iterator[object]]] = deque()

    def take(self, partition: int, offset: int, event: KvEvents, now: float) -> None:
        """Queue a record. ``work`` applies it."""
        self._queue.append((partition, offset, self._feed(event, now)))

    def skip(self, partition: int, offset: int) -> None:
        """Queue a record that says nothing: it only moves the position."""
        self._queue.append((partition, offset, iter(())))

    def work(self) -> bool:
        """Apply queued records for about one slice, or sweep one. True while something is left."""
        for _ in range(RECORDS_A_SLICE):
            if not self._queue:
                break
            partition, offset, steps = self._queue[0]
            if next(steps, _DONE) is not _DONE:
                return True
            self._queue.popleft()
            self.positions[partition] = offset + 1
        if self._queue:
            return True
        return any(index.sweep() for index in self.indexes.values() if index.to_sweep)

    @property
    def behind(self) -> int:
        """Records queued and not applied yet."""
        return len(self._queue)

    def match(self, model: str, block_size: int, addresses: Sequence[int]) -> CacheMatch:
        """What the slots of a model hold of a prompt. Read it before anything else is applied."""
        index = self.indexes.get((model, block_size))
        if index is None:
            return CacheMatch({}, {})
        return CacheMatch(index.match(addresses), self._members[model, block_size])

    def retire(self, slot: Slot, epoch: int) -> None:
        """The slot's life up to ``epoch`` is over: forget its blocks and ignore what still comes of it."""
        self._retired[slot] = max(epoch, self._retired.get(slot, epoch))
        stream = self.streams.get(slot)
        if stream is not None and stream.epoch <= epoch:
            self._close(slot)

    def forget(self, slot: Slot) -> None:
        """Drop the slot's blocks; if records of it come again, they start anew."""
        self._close(slot)

    def snapshot_requests(self, now: float) -> list[SlotEpoch]:
        """Slots whose agents should be asked for a snapshot now."""
        return [SlotEpoch(*slot, s.epoch) for slot, s in self.streams.items() if s.wants_snapshot(now)]

    def _feed(self, event: KvEvents, now: float) -> Iterator[None]:
        slot = Slot(event.worker_id, event.dp_rank)
        key = (event.model, event.block_size)
        stream = self.streams.get(slot)
        newest = stream.epoch if stream is not None else self._retired.get(slot, -1) + 1
        if event.epoch < newest:
            self.anomalies[Anomaly.OLD_EPOCH] += 1
            return
        if stream is None or event.epoch > stream.epoch or self._homes[slot] != key:
            self._close(slot)
            index = self.indexes.setdefault(key, PrefixIndex())
            stream = SlotStream(index, event.epoch, random=self._random, count=self._note)
            if event.snapshot is not None and event.snapshot.part == 0:
                stream.next_seq = event.seq
            self.streams[slot] = self._members.setdefault(key, {})[slot] = stream
            self._homes[slot] = key
        yield from stream.feed(event, now)

    def _close(self, slot: Slot) -> None:
        stream = self.streams.pop(slot, None)
        if stream is not None:
            stream.close()
            del self._members[self._homes.pop(slot)][slot]

    def _note(self, anomaly: Anomaly) -> None:
        self.anomalies[anomaly] += 1
