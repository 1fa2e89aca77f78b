"""One rank of one engine in one epoch: its events in, its record stream out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from services.kv.tier import Tier
from services.runtime.bus import Sender
from services.runtime.clock import Clock
from services.runtime.logs import get_logger
from services.worker.engines.events import Batch, Decodes, EngineEventError
from services.worker.event_stream import RawBatch, ReplayFailed, Streams
from services.worker.publisher import SlotPublisher
from services.worker.seq_tracker import SeqTracker, Verdict
from services.worker.sequence import Sequencer, SlotName
from services.worker.snapshot_schedule import SnapshotSchedule
from services.worker.translate import Translator

BREATHE_SECONDS = 0.002
"""Longest time between two looks at the event loop, one batch more or less."""

QUIET_SECONDS = (0.5, 5.0)
"""Silence after which replay is asked whether something was lost: the first time (a subscription takes a moment to
stand while the engine already speaks), and from then on."""

WATCH_SECONDS = 0.02
_log = get_logger("worker.slot")


class _Restarted(Exception):
    """A replayed batch is of another engine process than the ones before."""


class Slot:
    """Follows one rank. What it publishes is never more than what it knows to be resident.

    ``stream`` None: the engine publishes no events, and the slot's set is empty and incomplete.
    """

    def __init__(
        self, name: SlotName, stream: Streams | None, decoder: Decodes, sender: Sender, clock: Clock,
        schedule: SnapshotSchedule, translator: Translator | None = None,
    ) -> None:
        self.name = name
        self.translator = translator or Translator(name.block_size)
        self.publisher = SlotPublisher(Sequencer(name), self.translator, sender, clock, schedule, complete=False)
        self.batches = 0
        self._breathed = float("-inf")
        self._buffered = False
        """Whether the engine keeps batches for replay: only then does an empty replay say something."""
        self.holes = 0
        """Times events were lost for good."""
        self._stream = stream
        self._decoder = decoder
        self._tracker = SeqTracker()

    @property
    def follows(self) -> bool:
        """Whether there are events to follow."""
        return self._stream is not None

    async def begin(self) -> None:
        """Subscribe, catch up with what the engine still holds, publish the first snapshot."""
        if self._stream is not None:
            self._stream.open()
            try:
                # A buffer that is empty, or begins with seq 0, is the whole past.
                first = await self._replay(0)
                whole = first == 0 or (first is None and self._stream.remembers)
                self.publisher.complete = whole and not self.holes
            except ReplayFailed as problem:
                _log.warning("no replay: what the engine held before is unknown", **self._labels, error=str(problem))
        await self.publisher.step()

    async def follow(self) -> None:
        """Follow and publish until the engine turns out to have restarted, or until cancelled."""
        publishing = asyncio.ensure_future(self.publisher.run())
        following = asyncio.ensure_future(self._live())
        try:
            done, _ = await asyncio.wait([publishing, following], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (publishing, following):
                task.cancel()
            await asyncio.gather(publishing, following, return_exceptions=True)

    def close(self) -> None:
        """Let go of the sockets."""
        if self._stream is not None:
            self._stream.close()

    async def _live(self) -> None:
        if self._stream is None:
            await asyncio.Event().wait()
            return
        quiet: tuple[float, ...] = QUIET_SECONDS
        while True:
            try:
                async with asyncio.timeout(quiet[0]):
                    received = await self._stream.receive()
            except TimeoutError:
                quiet = quiet[1:] or quiet
                if not await self._look_behind():
                    return
                continue
            for raw in received:
                if not await self._take(raw):
                    return
                self.publisher.changed()
                await self._breathe()

    async def _take(self, raw: RawBatch) -> bool:
        """Take a live batch; whether the engine still is the same process."""
        batch = self._decode(raw)
        verdict = self._tracker.judge(raw.seq, batch.at if batch else float("-inf"))
        if verdict is Verdict.RESTARTED:
            _log.warning("engine restarted: its events begin anew", **self._labels, seq=raw.seq)
            return False
        if verdict is Verdict.GAP:
            try:
                await self._fill(raw.seq)
            except _Restarted:
                return False
        if verdict is not Verdict.DUPLICATE:
            self._accept(raw, batch)
        return True

    async def _breathe(self) -> None:
        """A socket that has more answers at once, and the loop would hear of nobody else."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._breathed > BREATHE_SECONDS:
            await asyncio.sleep(0)
            self._breathed = loop.time()

    async def _look_behind(self) -> bool:
        """A lost batch shows when the next one comes, and the next one may come late: ask.

        Whether the engine still is the same process: one that restarted at once, and whose first batches were lost
        while the subscription stood again, has no batch or another one where the last of ours was.
        """
        tracker = self._tracker
        if self._stream is None or not self._stream.remembers:
            return True
        try:
            first = await self._replay(tracker.again)
        except ReplayFailed:
            return True
        except _Restarted:
            first = None
        else:
            self.publisher.changed()
        if first is None and tracker.last is not None and self._buffered:
            _log.warning("engine restarted: it knows no batch of ours", **self._labels, last=tracker.last)
            return False
        return True

    async def _fill(self, seq: int) -> None:
        expected = self._tracker.expected
        _log.info("events missed, asking for a replay", **self._labels, expected=expected, found=seq)
        try:
            await self._replay(expected)
        except ReplayFailed as problem:
            _log.warning("no replay", **self._labels, error=str(problem))

    async def _replay(self, start: int) -> int | None:
        """Take what the engine replays; the first seq it had, None when it had nothing. Raises _Restarted."""
        first: int | None = None
        if self._stream is None:
            return first
        async with contextlib.aclosing(self._stream.replay(start)) as batches:
            async for raw in batches:
                first = raw.seq if first is None else first
                self._buffered = True
                batch = self._decode(raw)
                if self._tracker.judge(raw.seq, batch.at if batch else float("-inf")) is Verdict.RESTARTED:
                    raise _Restarted
                self._accept(raw, batch)
                await self._breathe()
        return first

    def _accept(self, raw: RawBatch, batch: Batch | None) -> None:
        """Take the next batch; one we have is passed over, after a hole we start from nothing."""
        tracker = self._tracker
        if raw.seq < tracker.expected:
            return
        if tracker.last is None:
            self.publisher.complete = raw.seq == 0
        elif raw.seq > tracker.expected:
            self._lost(f"seq {tracker.expected} to {raw.seq - 1}")
        if batch is None:
            tracker.took(raw.seq, float("-inf"))
            self._lost(f"seq {raw.seq} can't be read")
            return
        tracker.took(raw.seq, batch.at)
        self.batches += 1
        self.translator.apply(batch)

    def _lost(self, what: str) -> None:
        """Removals may be among what was lost: nothing is known to be resident any more."""
        self.holes += 1
        _log.error("events are lost: the resident set begins anew", **self._labels, what=what)
        self.translator.reset()
        self._decoder.reset()
        self.publisher.complete = False

    def _decode(self, raw: RawBatch) -> Batch | None:
        try:
            return self._decoder.decode(raw.payload)
        except EngineEventError as problem:
            _log.error("undecodable KV events", **self._labels, seq=raw.seq, error=str(problem)[:300])
            return None

    @property
    def _labels(self) -> dict[str, object]:
        return {"worker": self.name.worker_id, "rank": self.name.dp_rank, "epoch": self.name.epoch}


class Watch:
    """Looks for an identity in the events of all slots of an engine: a request lands on a rank of its choice."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots

    def expect(self, identity: int) -> None:
        """Begin to look."""
        for slot in self._slots:
            slot.translator.watch(identity)

    async def saw(self, identity: int, expected: Sequence[int], seconds: float) -> tuple[bool, bool]:
        """Wait for it: whether it came, and whether all expected addresses are resident where it came."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    for slot in self._slots:
                        if identity in slot.translator.seen:
                            held = slot.translator.resident.published(Tier.DEVICE)
                            return True, held.issuperset(expected)
                    await asyncio.sleep(WATCH_SECONDS)
        except TimeoutError:
            return False, False
        finally:
            for slot in self._slots:
                slot.translator.unwatch(identity)

    async def holds(self, expected: Sequence[int], seconds: float) -> bool:
        """Whether all these addresses are resident on one slot within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    for slot in self._slots:
                        if slot.translator.resident.published(Tier.DEVICE).issuperset(expected):
                            return True
                    await asyncio.sleep(WATCH_SECONDS)
        except TimeoutError:
            return False
