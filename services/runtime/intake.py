"""The consume discipline, once for every stage. Pure asyncio: it knows no broker.

Records are taken as they come and handled side by side up to a bound; records with the same key one after another.
What may be committed per partition is the lowest unfinished offset, so a slow record holds nobody else and a kill
loses nothing. Newly assigned partitions wait at a gate. On revocation: stop taking, wait a little, commit, drop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from services.runtime.bus import Record
from services.runtime.treatment import Treatment
from services.runtime.watermark import Watermark

Commit = Callable[[dict[int, int]], Awaitable[None]]
OnPartitions = Callable[[frozenset[int]], Awaitable[None]]

HELD_PER_RUNNING = 4
"""Records held (running or queued behind their key) at most, as a multiple of the concurrency."""
CANCEL_SECONDS = 1.0
"""How long cancelled handlers may take to notice."""
LONGEST_SPAN = 10_000
"""Records a partition may be ahead of its lowest unfinished one: bounds memory and what a kill repeats."""


@dataclass(eq=False)
class Lane:
    """One partition, from its assignment to its revocation."""

    partition: int
    watermark: Watermark = field(default_factory=Watermark)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False
    committed: int | None = None
    held: dict[int, Held] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Held:
    """One record in hand."""

    record: Record
    lane: Lane
    task: asyncio.Task[bool] | None = None


class Intake:
    """Takes records of one topic and sees each to its end.

    ``treatment`` handles one record with retries and dead letters and returns whether it is finished; ``commit``
    stores {partition: offset} and may raise, which is counted by ``on_commit_failed``.
    """

    def __init__(
        self,
        treatment: Treatment,
        *,
        commit: Commit | None,
        concurrency: int,
        on_commit_failed: Callable[[Exception], None],
        gate: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
    ) -> None:
        self.treatment = treatment
        self.concurrency = concurrency
        self.most_held = max(concurrency * HELD_PER_RUNNING, 16)
        self.handled = 0
        self.paused = False
        self._commit = commit
        self._on_commit_failed = on_commit_failed
        self._gate = gate
        self._on_revoked = on_revoked
        self._lanes: dict[int, Lane] = {}
        self._gates: dict[asyncio.Task[None], frozenset[int]] = {}
        self._behind: dict[tuple[int, bytes], deque[Held]] = {}
        self._ready: deque[Held] = deque()
        self._running = 0
        self._held = 0
        self._stopping = False
        self._room = asyncio.Event()
        self._committing = asyncio.Lock()

    # What the consumer tells

    def assigned(self, partitions: frozenset[int]) -> None:
        """Partitions were gained. Their records are handled once the gate has opened."""
        for partition in partitions:
            self._lanes[partition] = Lane(partition)
        if not partitions:
            return
        if self._gate is None:
            self._open(partitions)
            return
        task = asyncio.create_task(self._pass_gate(partitions), name=f"gate-{sorted(partitions)}")
        self._gates[task] = partitions
        task.add_done_callback(lambda done: self._gates.pop(done, None))

    async def revoked(self, partitions: frozenset[int], wait: float) -> None:
        """Partitions are being lost: let what runs finish for up to ``wait`` seconds, commit, drop the rest."""
        lanes = [self._lanes[partition] for partition in partitions if partition in self._lanes]
        if not lanes:
            return
        await self._leave(lanes, wait)
        for lane in lanes:
            del self._lanes[lane.partition]
        if self._on_revoked is not None:
            await self._on_revoked(partitions)

    async def take(self, records: Sequence[Record]) -> None:
        """Take records, in order. Returns when all are in hand, so waiting here is how a stage holds back."""
        lanes = dict(self._lanes)
        for record in records:
            lane = lanes.get(record.partition)
            if lane is None or lane.closed:
                continue
            if not lane.open.is_set():
                await lane.open.wait()
            while not self._has_room(lane):
                self.paused = True
                self._room.clear()
                await self._room.wait()
            self.paused = False
            self._admit(record, lane)

    async def drain(self, wait: float) -> None:
        """Stop taking, let what runs finish for up to ``wait`` seconds, commit, drop the rest."""
        self._stopping = True
        await self._leave(list(self._lanes.values()), wait)

    # What is known

    async def commit(self) -> None:
        """Commit the lowest unfinished offset of every partition that moved."""
        await self._commit_lanes(list(self._lanes.values()))

    @property
    def in_flight(self) -> int:
        """Records in hand."""
        return self._held

    @property
    def positions(self) -> dict[int, int]:
        """Lowest unfinished offset by assigned partition, where anything was taken."""
        return {
            lane.partition: offset
            for lane in self._lanes.values()
            if (offset := lane.watermark.committable) is not None
        }

    @property
    def partitions(self) -> frozenset[int]:
        """Assigned partitions."""
        return frozenset(self._lanes)

    @property
    def oldest_ms(self) -> int | None:
        """Timestamp of the oldest record in hand."""
        firsts = (next(iter(lane.held.values())) for lane in self._lanes.values() if lane.held)
        return min((held.record.timestamp_ms for held in firsts), default=None)

    # Inside

    def _has_room(self, lane: Lane) -> bool:
        if lane.closed or self._stopping:
            return True
        return self._held < self.most_held and lane.watermark.span < LONGEST_SPAN

    def _admit(self, record: Record, lane: Lane) -> None:
        if lane.closed or self._stopping or not lane.watermark.take(record.offset):
            return
        held = Held(record, lane)
        lane.held[record.offset] = held
        self._held += 1
        if record.key is not None:
            queue = self._behind.get((record.partition, record.key))
            if queue is not None:
                queue.append(held)
                return
            self._behind[record.partition, record.key] = deque()
        self._ready.append(held)
        self._fill()

    def _fill(self) -> None:
        while self._ready and self._running < self.concurrency:
            held = self._ready.popleft()
            self._running += 1
            held.task = asyncio.create_task(self.treatment.treat(held.record))
            held.task.add_done_callback(partial(self._done, held))

    def _done(self, held: Held, task: asyncio.Task[bool]) -> None:
        # A callback, since a task that is cancelled before its first step runs no ``finally``.
        self._running -= 1
        finished = False
        if not task.cancelled():
            if (error := task.exception()) is not None:
                self.treatment.broke(held.record, error)
            else:
                finished = task.result()
        self._let_go(held, finished)

    def _let_go(self, held: Held, finished: bool) -> None:
        record, lane = held.record, held.lane
        self._held -= 1
        lane.held.pop(record.offset, None)
        if finished:
            self.handled += 1
            lane.watermark.finish(record.offset)
        if record.key is not None:
            queue = self._behind[record.partition, record.key]
            while queue and queue[0].lane.closed:
                self._drop(queue.popleft())
            if queue:
                self._ready.append(queue.popleft())
            else:
                del self._behind[record.partition, record.key]
        self._fill()
        self._room.set()

    def _drop(self, held: Held) -> None:
        """Forget a record that never ran."""
        self._held -= 1
        held.lane.held.pop(held.record.offset, None)

    async def _pass_gate(self, partitions: frozenset[int]) -> None:
        gate = self._gate
        assert gate is not None
        if await self.treatment.until_it_works(lambda: gate(partitions), "gate"):
            self._open(partitions)

    def _open(self, partitions: frozenset[int]) -> None:
        for partition in partitions:
            if (lane := self._lanes.get(partition)) is not None:
                lane.open.set()

    async def _leave(self, lanes: list[Lane], wait: float) -> None:
        for lane in lanes:
            lane.closed = True
            lane.open.set()
        leaving = frozenset(lane.partition for lane in lanes)
        for gate, partitions in list(self._gates.items()):
            if partitions & leaving:
                gate.cancel()
        for held in [held for held in self._ready if held.lane.closed]:
            self._ready.remove(held)
            self._abandon(held)
        self._room.set()
        tasks = [held.task for lane in lanes for held in lane.held.values() if held.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=wait)
        await self._commit_lanes(lanes)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)

    def _abandon(self, held: Held) -> None:
        """Drop a record that was ready, and those behind it (same key, so same partition, so leaving too)."""
        self._drop(held)
        if held.record.key is not None:
            for behind in self._behind.pop((held.record.partition, held.record.key), ()):
                self._drop(behind)

    async def _commit_lanes(self, lanes: list[Lane]) -> None:
        if self._commit is None:
            return
        async with self._committing:
            moved = {
                lane: offset
                for lane in lanes
                if (offset := lane.watermark.committable) is not None and offset != lane.committed
            }
            if not moved:
                return
            try:
                await self._commit({lane.partition: offset for lane, offset in moved.items()})
            except Exception as error:
                self._on_commit_failed(error)
                return
            for lane, offset in moved.items():
                lane.committed = offset
