"""One consumer for all projections of a process: ten idle consumers would cost a third of a core."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from services.runtime.admin import Admin
from services.runtime.connection import consumer_options, profile_of
from services.runtime.logs import get_logger
from services.runtime.lookup import Lookup, to_record
from services.runtime.metrics import PROJECTION_ERRORS, PROJECTION_LAG, PROJECTION_POSITION
from services.runtime.names import TopicNames
from services.runtime.projection import AT_BEGINNING, AT_END, Projection, Start
from services.runtime.settings import Settings

_POLL_MS = 100
_MOST_RECORDS = 500
_SLICE_SECONDS = 0.005
"""Longest time records are applied without letting the event loop do anything else."""
_LOOK_SECONDS = 1.0
_log = get_logger("runtime.projections")


class ProjectionReader:
    """Feeds projections: every partition of their topics, in order, no group.

    Shared by the services of a process. It connects with the first projection and disconnects with the last.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names = TopicNames(settings.topic_prefix)
        self._projections: list[Projection] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self.last_turn = 0.0
        """Event loop time of the last turn, for liveness."""

    async def add(self, projections: Sequence[Projection]) -> None:
        """Start feeding projections; returns when their start positions are set.

        Raises Transient when a topic does not exist or the broker can't be reached.
        """
        lookup = Lookup(self._settings)
        try:
            async with Admin(self._settings) as admin:
                counts = await admin.wait_for(projection.topic.name for projection in projections)
            for projection in projections:
                partitions = range(counts[projection.topic.name])
                projection.begin(await self._starts(lookup, projection, partitions))
                projection.fed = True
        finally:
            await lookup.stop()
        await self._change([*self._projections, *projections])

    async def remove(self, projections: Sequence[Projection]) -> None:
        """Stop feeding projections; after the last one, disconnect."""
        for projection in projections:
            projection.fed = False
        leaving = {id(projection) for projection in projections}
        await self._change([projection for projection in self._projections if id(projection) not in leaving])

    async def _change(self, projections: list[Projection]) -> None:
        async with self._changing:
            self._projections = projections
            self._changed.set()
            if not projections:
                await self._end()
            elif self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run(), name="projections")

    async def _end(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _starts(self, lookup: Lookup, projection: Projection, partitions: range) -> dict[int, int]:
        topic = projection.topic.name
        if projection.offsets is not None:
            wanted = projection.offsets()
            given = {partition: wanted.get(partition, AT_BEGINNING) for partition in partitions}
            if AT_END in given.values():
                ends = await lookup.ends(topic, partitions)
                given |= {partition: ends[partition] for partition, offset in given.items() if offset == AT_END}
            if AT_BEGINNING in given.values():
                begins = await lookup.begins(topic, partitions)
                given |= {partition: begins[partition] for partition, offset in given.items() if offset == AT_BEGINNING}
            return given
        if projection.start is Start.END:
            return await lookup.ends(topic, partitions)
        if projection.start is Start.SINCE and projection.since_ms is not None:
            return await lookup.since(topic, partitions, projection.since_ms)
        return await lookup.begins(topic, partitions)

    async def _run(self) -> None:
        while True:
            consumer = AIOKafkaConsumer(**consumer_options(self._settings, projection=True))
            try:
                await consumer.start()
                self._changed.set()
                await self._read(consumer)
            except KafkaError as error:
                _log.warning("projections wait for the broker", error=f"{type(error).__name__} {error}")
                await asyncio.sleep(1.0)
            finally:
                await consumer.stop()

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        readers: dict[TopicPartition, list[Projection]] = {}
        look_around = 0.0
        gather_seconds = profile_of(self._settings).gather_ms / 1000
        while True:
            self.last_turn = asyncio.get_running_loop().time()
            if self._changed.is_set():
                self._changed.clear()
                readers = self._assign(consumer)
                look_around = 0.0
            batches = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_MOST_RECORDS)
            for tp, records in batches.items():
                await self._apply(records, readers.get(tp, []))
            if self.last_turn >= look_around:
                look_around = self.last_turn + (_LOOK_SECONDS if self._all_caught_up else 0.0)
                await self._look(consumer, readers)
            for projection in self._projections:
                projection.settle()
            if gather_seconds and sum(map(len, batches.values())) < _MOST_RECORDS:
                # What comes meanwhile is read at once: a fetch of all partitions costs more than a record.
                await asyncio.sleep(gather_seconds)

    def _assign(self, consumer: AIOKafkaConsumer) -> dict[TopicPartition, list[Projection]]:
        """Assign every partition some projection needs, at the lowest position any of them is at."""
        readers: dict[TopicPartition, list[Projection]] = {}
        for projection in self._projections:
            for partition in projection.positions:
                tp = TopicPartition(self._names.outside(projection.topic.name), partition)
                readers.setdefault(tp, []).append(projection)
        consumer.assign(list(readers))
        for tp, projections in readers.items():
            consumer.seek(tp, min(projection.positions[tp.partition] for projection in projections))
        return readers

    async def _apply(self, records: list[ConsumerRecord], projections: list[Projection]) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        for raw in records:
            record = to_record(raw, self._names)
            for projection in projections:
                if not projection.fed:
                    continue
                try:
                    projection.take(record)
                except Exception as error:
                    PROJECTION_ERRORS.labels(projection.stage, projection.topic.name).inc()
                    _log.warning(
                        "projection skips a record", stage=projection.stage, topic=record.topic,
                        partition=record.partition, offset=record.offset, error=f"{type(error).__name__}: {error}",
                    )  # fmt: skip
            if loop.time() - since > _SLICE_SECONDS:
                await asyncio.sleep(0)
                since = loop.time()

    async def _look(self, consumer: AIOKafkaConsumer, readers: dict[TopicPartition, list[Projection]]) -> None:
        """Compare positions with highwaters, and move over offsets that hold no record."""
        for tp, projections in readers.items():
            highwater = consumer.highwater(tp)
            if highwater is None:
                continue
            lowest = min(projection.positions[tp.partition] for projection in projections)
            if lowest < highwater:
                with contextlib.suppress(TimeoutError):
                    position = await asyncio.wait_for(consumer.position(tp), 1.0)
                    for projection in projections:
                        projection.advance(tp.partition, position)
                    lowest = max(lowest, position)
            topic, partition = self._names.inside(tp.topic), str(tp.partition)
            for projection in projections:
                projection.note_highwater(tp.partition, highwater)
            PROJECTION_POSITION.labels(topic, partition).set(lowest)
            PROJECTION_LAG.labels(topic, partition).set(max(0, highwater - lowest))

    @property
    def _all_caught_up(self) -> bool:
        return all(projection.caught_up for projection in self._projections)
