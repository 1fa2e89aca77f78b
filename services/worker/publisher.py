"""Sends a slot's record stream to ``kv-events``, one record after the other.

Order is everything here, so a record is sent when the one before it has been acknowledged, whatever the producer
promises. That bounds a slot to some hundred records a second, each of up to 4,096 addresses. A record that fails is
sent again unchanged: readers drop a seq they have seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from schemas.decision import Position
from schemas.kv_event import KvEvents
from services.kv.tier import TIERS
from services.runtime.bus import Sender
from services.runtime.clock import Clock
from services.runtime.errors import Transient
from services.runtime.topics import KV_EVENTS
from services.worker.sequence import MAX_CHANGE_ADDRESSES, Sequencer
from services.worker.snapshot_schedule import SnapshotSchedule
from services.worker.translate import Translator

COALESCE_SECONDS = 0.02
BACKLOG_ADDRESSES = 262_144
"""Changes kept while Kafka is away; beyond it they are dropped and a snapshot follows."""

RETRY_SECONDS = (0.1, 2.0)


class SlotPublisher:
    """Publishes the changes and snapshots of one slot until it is cancelled."""

    def __init__(
        self, sequencer: Sequencer, translator: Translator, sender: Sender, clock: Clock, schedule: SnapshotSchedule,
        *, complete: bool,
    ) -> None:
        self.complete = complete
        """False: the set is only a part of what the engine holds."""
        self.snapshot: Position | None = None
        """Where the latest snapshot starts."""
        self.last_seq: int | None = None
        """The last seq the broker has."""
        self.stalled = False
        """Whether the broker refused the last record."""
        self._sequencer = sequencer
        self._translator = translator
        self._sender = sender
        self._clock = clock
        self._schedule = schedule
        self._moved = asyncio.Event()
        self._full = asyncio.Event()

    def changed(self) -> None:
        """The resident set has changed: to be called after every batch."""
        pending = self._translator.resident.pending
        if not pending:
            return
        if pending > BACKLOG_ADDRESSES:
            self._translator.resident.drain()
            self._schedule.need(self._clock.monotonic())
        if pending >= MAX_CHANGE_ADDRESSES:
            self._full.set()
        self._moved.set()

    def ask_snapshot(self) -> None:
        """A reader is uncertain about this slot."""
        self._schedule.ask(self._clock.monotonic())
        self._moved.set()

    async def run(self) -> None:
        """Publish until cancelled. The first record is a snapshot."""
        while True:
            await self.step()
            await self._wait()

    async def step(self) -> None:
        """Publish what is there to publish now."""
        resident, translator = self._translator.resident, self._translator
        if self._schedule.due(self._clock.monotonic()):
            # What is in the log is in the set as well.
            resident.drain()
            self._schedule.taken(self._clock.monotonic())
            held = {tier: resident.published(tier) for tier in TIERS}
            records: Iterable[KvEvents] = self._sequencer.snapshot(
                held, unknown=translator.unknown, complete=self.complete, hybrid=translator.hybrid
            )
        elif resident.pending:
            records = self._sequencer.changes(
                resident.drain(), unknown=translator.unknown, complete=self.complete, hybrid=translator.hybrid
            )
        else:
            return
        for record in records:
            position = await self._deliver(record)
            self.last_seq = record.seq
            if record.snapshot is not None and record.snapshot.part == 0:
                self.snapshot = position

    async def _wait(self) -> None:
        """Until a snapshot is due, or 20 ms after the first change, or as soon as a record is full."""
        timeout = max(0.0, self._schedule.due_at - self._clock.monotonic())
        try:
            async with asyncio.timeout(timeout):
                await self._moved.wait()
            async with asyncio.timeout(COALESCE_SECONDS):
                await self._full.wait()
        except TimeoutError:
            pass
        self._moved.clear()
        self._full.clear()

    async def _deliver(self, record: KvEvents) -> Position:
        pause, longest = RETRY_SECONDS
        while True:
            try:
                position = await self._sender.send(KV_EVENTS.name, record, key=record.worker_id)
            except Transient:
                self.stalled = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, longest)
            else:
                self.stalled = False
                return position
