"""Single questions to the broker: where does a topic end, what stands at a position."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from schemas.decision import Position
from services.runtime.bus import Record
from services.runtime.connection import consumer_options, profile_of
from services.runtime.errors import Transient
from services.runtime.names import TopicNames
from services.runtime.settings import Settings

_BEYOND = 1 << 62
"""Reading here answers with the highwater and no records on the embedded broker."""
_PATIENCE_SECONDS = 10.0


def to_record(raw: ConsumerRecord, names: TopicNames) -> Record:
    """A broker's record as stages see it."""
    return Record(
        names.inside(raw.topic), raw.partition, raw.offset, raw.timestamp, raw.key, raw.value, tuple(raw.headers)
    )


class Lookup:
    """One consumer for questions, connected at the first and asked one at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names = TopicNames(settings.topic_prefix)
        self._offsets_are_right = profile_of(settings).offsets_are_right
        self._consumer: AIOKafkaConsumer | None = None
        self._asking = asyncio.Lock()

    async def stop(self) -> None:
        """Disconnect."""
        async with self._asking:
            await self._disconnect()

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Highwater (offset of the next record) by partition. Raises Transient."""
        tps = [TopicPartition(self._names.outside(topic), partition) for partition in partitions]
        async with self._asking:
            consumer = await self._connected()
            try:
                if self._offsets_are_right:
                    found = await consumer.end_offsets(tps)
                else:
                    found = await asyncio.wait_for(_ends_by_reading(consumer, tps), _PATIENCE_SECONDS)
            except (KafkaError, TimeoutError) as error:
                await self._disconnect()
                raise Transient(f"the end of {topic} could not be read: {type(error).__name__} {error}") from error
        return {tp.partition: int(offset) for tp, offset in found.items()}

    async def begins(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """First offset by partition. Raises Transient."""
        tps = [TopicPartition(self._names.outside(topic), partition) for partition in partitions]
        async with self._asking:
            consumer = await self._connected()
            try:
                found = await consumer.beginning_offsets(tps)
            except KafkaError as error:
                await self._disconnect()
                raise Transient(f"the start of {topic} could not be read: {error}") from error
        return {tp.partition: int(offset) for tp, offset in found.items()}

    async def since(self, topic: str, partitions: Iterable[int], since_ms: int) -> dict[int, int]:
        """First offset with a timestamp from ``since_ms`` on, by partition. Raises Transient.

        The embedded broker can't say; there it is the beginning.
        """
        partitions = list(partitions)
        if not self._offsets_are_right:
            return await self.begins(topic, partitions)
        tps = {TopicPartition(self._names.outside(topic), partition): since_ms for partition in partitions}
        async with self._asking:
            consumer = await self._connected()
            try:
                found = await consumer.offsets_for_times(tps)
            except KafkaError as error:
                await self._disconnect()
                raise Transient(f"offsets of {topic} by time could not be read: {error}") from error
        late = [tp.partition for tp, answer in found.items() if answer is None]
        ends = await self.ends(topic, late) if late else {}
        return ends | {tp.partition: int(answer.offset) for tp, answer in found.items() if answer is not None}

    async def read(self, position: Position) -> Record | None:
        """The record at a position, None when it is gone or not there yet. Raises Transient."""
        tp = TopicPartition(self._names.outside(position.topic), position.partition)
        async with self._asking:
            consumer = await self._connected()
            try:
                raw = await asyncio.wait_for(_read(consumer, tp, position.offset), _PATIENCE_SECONDS)
            except OffsetOutOfRangeError:
                return None
            except (KafkaError, TimeoutError) as error:
                await self._disconnect()
                raise Transient(f"{position.topic}/{position.partition}@{position.offset} could not be read") from error
        return None if raw is None or raw.offset != position.offset else to_record(raw, self._names)

    async def _connected(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            options = consumer_options(self._settings) | {"auto_offset_reset": "none"}
            consumer = AIOKafkaConsumer(**options)
            try:
                await consumer.start()
            except KafkaError as error:
                await consumer.stop()
                raise Transient(f"no broker answers at {self._settings.kafka_bootstrap}: {error}") from error
            self._consumer = consumer
        return self._consumer

    async def _disconnect(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()


async def _ends_by_reading(consumer: AIOKafkaConsumer, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
    consumer.assign(tps)
    for tp in tps:
        consumer.seek(tp, _BEYOND)
    while True:
        await consumer.getmany(timeout_ms=2)
        ends = {tp: consumer.highwater(tp) for tp in tps}
        if all(end is not None for end in ends.values()):
            consumer.assign([])
            return ends


async def _read(consumer: AIOKafkaConsumer, tp: TopicPartition, offset: int) -> ConsumerRecord | None:
    consumer.assign([tp])
    consumer.seek(tp, offset)
    try:
        while True:
            batches = await consumer.getmany(tp, timeout_ms=20, max_records=1)
            for records in batches.values():
                if records:
                    return records[0]
            highwater = consumer.highwater(tp)
            if highwater is not None and offset >= highwater:
                return None
    finally:
        consumer.assign([])
