"""A reader of one partition without a group: an agent's work, a gateway's answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from services.runtime.connection import consumer_options
from services.runtime.intake import Intake
from services.runtime.logs import get_logger
from services.runtime.lookup import Lookup, to_record
from services.runtime.names import TopicNames
from services.runtime.settings import Settings

_POLL_MS = 1000
_MOST_RECORDS = 500
_log = get_logger("runtime.assigned")


class AssignedReader:
    """Reads from a given offset, or from the end noted at the start. Nothing is committed: a new life starts anew."""

    def __init__(
        self, settings: Settings, topic: str, partition: int, offset: int | None, make_intake: Callable[[], Intake]
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.position = offset
        """Next offset to read; None until the end is known."""
        self.intake = make_intake()
        self.last_turn = 0.0
        self._settings = settings
        self._names = TopicNames(settings.topic_prefix)
        self._task: asyncio.Task[None] | None = None
        self._highwater: int | None = None

    async def note_end(self, lookup: Lookup) -> None:
        """Note the end of the topic as the place to begin, unless there is one. Raises Transient."""
        if self.position is None:
            self.position = (await lookup.ends(self.topic, [self.partition]))[self.partition]

    async def start(self, lookup: Lookup) -> None:
        """Note where to begin unless that was done, then read. Raises Transient."""
        await self.note_end(lookup)
        self.intake.assigned(frozenset({self.partition}))
        self._task = asyncio.create_task(self._run(), name=f"read-{self.topic}")

    async def stop(self) -> None:
        """Disconnect."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def alive(self) -> bool:
        """Whether the reading task runs."""
        return self._task is not None and not self._task.done()

    @property
    def lags(self) -> dict[int, int]:
        """Highwater minus lowest unfinished offset, when known."""
        position = self.intake.positions.get(self.partition, self.position)
        if self._highwater is None or position is None:
            return {}
        return {self.partition: max(0, self._highwater - position)}

    async def _run(self) -> None:
        while True:
            consumer = AIOKafkaConsumer(**consumer_options(self._settings))
            try:
                await consumer.start()
                await self._read(consumer)
            except KafkaError as error:
                _log.warning("reader waits for the broker", topic=self.topic, error=f"{type(error).__name__} {error}")
                await asyncio.sleep(0.5)
            finally:
                await consumer.stop()

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        tp = TopicPartition(self._names.outside(self.topic), self.partition)
        consumer.assign([tp])
        consumer.seek(tp, self.position)
        while True:
            self.last_turn = asyncio.get_running_loop().time()
            batches = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_MOST_RECORDS)
            self._highwater = consumer.highwater(tp)
            for records in batches.values():
                self.position = records[-1].offset + 1
                await self.intake.take([to_record(raw, self._names) for raw in records])
