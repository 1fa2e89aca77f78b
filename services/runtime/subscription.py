"""A group consumer: FastStream brings batches, the intake does the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiokafka import ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from faststream.kafka.message import KafkaMessage
from faststream.middlewares import AckPolicy

from services.runtime.connection import REVOKE_WAIT_SECONDS, group_options
from services.runtime.errors import Transient
from services.runtime.faststream_broker import make_broker
from services.runtime.intake import Intake
from services.runtime.lookup import to_record
from services.runtime.metrics import REBALANCES
from services.runtime.names import TopicNames
from services.runtime.settings import Settings
from services.runtime.topics import Topic

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer

_HOURS_MS = 12 * 3600 * 1000
"""FastStream sleeps this long only after a poll that brought nothing, and a poll wakes on data: so it never does."""
_MOST_RECORDS = 500
_COMMIT_SECONDS = 10.0
"""aiokafka repeats a commit for as long as the coordinator is away; a rebalance must not wait for that."""

Raw = tuple[ConsumerRecord, ...]


class Subscription:
    """One topic read in a consumer group."""

    def __init__(
        self,
        topic: Topic,
        group: str,
        settings: Settings,
        make_intake: Callable[[Callable[[dict[int, int]], Awaitable[None]]], Intake],
        *,
        stage: str,
        fail: Callable[[BaseException], None],
        urgent: bool = True,
    ) -> None:
        self.topic = topic
        self.group = group
        self.intake = make_intake(self._commit)
        self._names = TopicNames(settings.topic_prefix)
        self._outside = self._names.outside(topic.name)
        self._fail = fail
        # A broker object each: FastStream starts the subscribers of one after another, and joining takes its time.
        self._broker = make_broker(settings)
        subscriber: Any = self._broker.subscriber(
            self._outside,
            batch=True,
            group_id=self._names.outside(group_id(group, topic)),
            ack_policy=AckPolicy.MANUAL,
            no_reply=True,
            batch_timeout_ms=_HOURS_MS,
            max_records=_MOST_RECORDS,
            listener=_Listener(self.intake, stage, topic.name),
            parser=_parse,
            decoder=_decode,
            **group_options(settings, urgent=urgent),
        )
        subscriber(self._on_batch)
        self._subscriber = subscriber

    async def start(self) -> None:
        """Join the group; returns with the first assignment. Raises Transient when the broker can't be reached."""
        try:
            await self._broker.start()
        except KafkaError as error:
            raise Transient(f"could not join the readers of {self.topic.name}: {error}") from error

    async def stop(self) -> None:
        """Leave the group."""
        coordinator = getattr(self.consumer, "_coordinator", None)
        if coordinator is not None and coordinator.generation == 0:
            # Tansu counts generations from 0 and aiokafka says good-bye only from 1 on: without this the next member
            # of the group would wait until our session has run out.
            coordinator.generation = 1
        await self._broker.stop()

    @property
    def alive(self) -> bool:
        """Whether the membership is looked after: aiokafka's own task can die of an error it did not expect."""
        task = getattr(getattr(self.consumer, "_coordinator", None), "_coordination_task", None)
        return not isinstance(task, asyncio.Task) or not task.done()

    @property
    def consumer(self) -> AIOKafkaConsumer | None:
        """The consumer FastStream made, between start and stop."""
        consumer: AIOKafkaConsumer | None = self._subscriber.consumer
        return consumer

    @property
    def lags(self) -> dict[int, int]:
        """Highwater minus lowest unfinished offset, by partition, where both are known."""
        consumer = self.consumer
        if consumer is None:
            return {}
        lags: dict[int, int] = {}
        assigned = consumer.assignment()
        for partition, position in self.intake.positions.items():
            tp = TopicPartition(self._outside, partition)
            highwater = consumer.highwater(tp) if tp in assigned else None
            if highwater is not None:
                lags[partition] = max(0, highwater - position)
        return lags

    async def _on_batch(self, records: Raw) -> None:
        # From the consumer's answer to here nothing is awaited that could let a rebalance in between, so these
        # records belong to the partitions the intake holds now.
        try:
            await self.intake.take([to_record(raw, self._names) for raw in records])
        except Exception as error:
            # FastStream logs what a handler raises and goes on: these records would be skipped.
            self._fail(error)
            raise

    async def _commit(self, offsets: dict[int, int]) -> None:
        consumer = self.consumer
        if consumer is None:
            raise RuntimeError(f"{self.topic.name}: the consumer is gone, {len(offsets)} offsets stay uncommitted")
        commits = {TopicPartition(self._outside, partition): offset for partition, offset in offsets.items()}
        await asyncio.wait_for(consumer.commit(commits), _COMMIT_SECONDS)


def group_id(group: str, topic: Topic) -> str:
    """The consumer group's name: a stage that reads several topics has a group for each.

    In one group every start or stop of a reader of one topic would stop the readers of the others for a moment.
    """
    return f"{group}.{topic.name.removeprefix('kvroute.').removesuffix('.v1')}"


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Tells the intake about partitions. aiokafka awaits both before it goes on."""

    def __init__(self, intake: Intake, stage: str, topic: str) -> None:
        self._intake = intake
        self._revoked = REBALANCES.labels(stage, topic, "revoked")
        self._assigned = REBALANCES.labels(stage, topic, "assigned")

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        if revoked:
            self._revoked.inc()
        await self._intake.revoked(frozenset(tp.partition for tp in revoked), REVOKE_WAIT_SECONDS)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self._assigned.inc()
        self._intake.assigned(frozenset(tp.partition for tp in assigned))


async def _parse(records: Raw, _original: Any) -> KafkaMessage:
    """The batch as it is. FastStream's parser decodes headers as UTF-8: one bad header would lose the batch."""
    return KafkaMessage(body=b"", raw_message=records, consumer=_NO_CONSUMER)


async def _decode(message: KafkaMessage) -> Any:
    return message.raw_message


class _NoConsumer:
    async def commit(self) -> None:
        """Offsets are committed by the intake only."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Never called: nothing is nacked."""


_NO_CONSUMER = _NoConsumer()
