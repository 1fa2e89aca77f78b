"""Kafka as commands see it: read a topic to its end, one record, send, make and list topics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol, Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from schemas.decision import Position
from services.runtime.admin import Admin, TopicState, create_topics, list_topics
from services.runtime.bus import Record, Sender
from services.runtime.connection import consumer_options
from services.runtime.errors import Transient
from services.runtime.lookup import Lookup, to_record
from services.runtime.names import TopicNames
from services.runtime.sender import KafkaSender
from services.runtime.settings import Settings


class Broker(Protocol):
    """A connection to Kafka, entered for as long as a command runs."""

    sender: Sender

    async def __aenter__(self) -> Self:
        """Connect. Raises Transient when no broker answers."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Disconnect."""
        ...

    def read_all(self, topic: str) -> AsyncIterator[Record]:
        """Every record there is now, in order within a partition. Raises Transient."""
        ...

    async def read_at(self, position: Position) -> Record | None:
        """One record, None when it is gone. Raises Transient."""
        ...

    async def create_topics(self) -> list[str]:
        """Make the topics that are missing; returns the new ones. Raises Transient or ConfigError."""
        ...

    async def list_topics(self) -> list[TopicState]:
        """All topics of this fleet. Raises Transient."""
        ...


class KafkaBroker:
    """The real one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names = TopicNames(settings.topic_prefix)
        self._kafka_sender = KafkaSender(settings, "cli")
        self.sender: Sender = self._kafka_sender
        self._lookup = Lookup(settings)

    async def __aenter__(self) -> Self:
        """Connect. Raises Transient when no broker answers."""
        await self._kafka_sender.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Disconnect."""
        await self._lookup.stop()
        await self._kafka_sender.stop()

    async def read_all(self, topic: str) -> AsyncIterator[Record]:
        """Every record there is now, in order within a partition. Raises Transient."""
        async with Admin(self._settings) as admin:
            partitions = range((await admin.partitions([topic])).get(topic, 0))
        ends = await self._lookup.ends(topic, partitions)
        begins = await self._lookup.begins(topic, partitions)
        waiting = {
            TopicPartition(self._names.outside(topic), partition): end
            for partition, end in ends.items()
            if end > begins.get(partition, 0)
        }
        if not waiting:
            return
        consumer = AIOKafkaConsumer(**consumer_options(self._settings, projection=True))
        try:
            await consumer.start()
            consumer.assign(list(waiting))
            for tp in waiting:
                consumer.seek(tp, begins.get(tp.partition, 0))
            while waiting:
                for tp, raw in (await consumer.getmany(*waiting, timeout_ms=1000)).items():
                    for one in raw:
                        if one.offset < waiting[tp]:
                            yield to_record(one, self._names)
                # The position, not the last record: the end of a compacted topic may hold none.
                waiting = {tp: end for tp, end in waiting.items() if await consumer.position(tp) < end}
        except KafkaError as error:
            raise Transient(f"{topic} could not be read: {type(error).__name__} {error}") from error
        finally:
            await consumer.stop()

    async def read_at(self, position: Position) -> Record | None:
        """One record, None when it is gone. Raises Transient."""
        return await self._lookup.read(position)

    async def create_topics(self) -> list[str]:
        """Make the topics that are missing; returns the new ones. Raises Transient or ConfigError."""
        return await create_topics(self._settings)

    async def list_topics(self) -> list[TopicState]:
        """All topics of this fleet. Raises Transient."""
        return await list_topics(self._settings)
