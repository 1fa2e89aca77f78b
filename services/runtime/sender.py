"""Publishing: one producer for a stage, sends pipelined, each awaited by who sent it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnknownTopicOrPartitionError,
)
from prometheus_client import Counter

from schemas.decision import Position
from schemas.types import Message
from services.runtime import trace
from services.runtime.admin import Admin
from services.runtime.connection import ENVELOPE_BYTES, producer_options, profile_of
from services.runtime.errors import BadRecord, Transient
from services.runtime.logs import get_logger
from services.runtime.metrics import RECORDS_SENT, SEND_FAILURES, topic_label
from services.runtime.names import TopicNames
from services.runtime.settings import Settings
from services.runtime.topics import DEAD_LETTER_LIMIT_BYTES, DEAD_LETTERS, RECORD_LIMIT_BYTES

_JSON = (("content-type", b"application/json"),)
_MISSING_SECONDS = 5.0
_REMEMBERED_MOST = 10_000
_REVIVE_SECONDS = 2.0
_STOP_SECONDS = 5.0
_log = get_logger("runtime.sender")


@dataclass(frozen=True, slots=True)
class _Channel:
    """What is kept per topic. ``turn`` keeps records in the order of the calls.

    Handing a record to the producer may wait (for metadata, for room in a full batch), and who waits is overtaken
    by who comes when the room is there.
    """

    turn: asyncio.Lock
    sent: Counter


class KafkaSender:
    """The Sender of a stage (services/runtime/bus.py). Usable between ``start`` and ``stop``.

    On Kafka the producer is idempotent: a send waits until the broker is back, however long that takes, and the
    record is written once. Who can't wait that long puts a deadline around it. On the embedded broker a send that got
    no answer for 30 s raises Transient.

    Records for one topic are written in the order of the calls, however many are under way.
    """

    def __init__(self, settings: Settings, stage: str) -> None:
        self._settings = settings
        self._stage = stage
        self._names = TopicNames(settings.topic_prefix)
        self._producer: AIOKafkaProducer | None = None
        self._reviving = asyncio.Lock()
        self._revived_at = 0.0
        self._missing: dict[str, float] = {}
        self._channels: dict[str, _Channel] = {}
        self._under_way: dict[object, float] = {}
        self._admin = Admin(settings)

    async def start(self) -> None:
        """Connect. Raises Transient when the broker can't be reached."""
        self._producer = await self._connect()

    async def stop(self) -> None:
        """Send what waits, for 5 s at most, then disconnect."""
        producer, self._producer = self._producer, None
        await self._admin.stop()
        if producer is not None:
            with contextlib.suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(producer.stop(), _STOP_SECONDS)

    @property
    def waiting_seconds(self) -> float:
        """How long the oldest send under way has waited. An idempotent producer waits for as long as it takes."""
        oldest = next(iter(self._under_way.values()), None)
        return 0.0 if oldest is None else time.monotonic() - oldest

    async def send(
        self,
        topic: str,
        message: Message | None,
        *,
        key: str,
        partition: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Position:
        """Publish a message and wait for the ack. ``None`` is a tombstone.

        Raises Transient when the broker can't be reached, BadRecord when the record is over the limit or the topic
        does not exist.
        """
        extra = [(name, value.encode()) for name, value in (headers or {}).items()]
        if message is None:
            return await self._publish(topic, None, key.encode(), partition, extra)
        own = [("schema", message.SCHEMA.encode()), *_JSON, *extra]
        return await self._publish(topic, message.to_bytes(), key.encode(), partition, own)

    async def send_raw(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        partition: int | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> Position:
        """Publish bytes as they are. Raises as ``send`` does."""
        if value is None and key is None:
            value = b""
        return await self._publish(topic, value, key, partition, list((headers or {}).items()))

    async def _publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: list[tuple[str, bytes]],
    ) -> Position:
        limit = DEAD_LETTER_LIMIT_BYTES - ENVELOPE_BYTES if topic == DEAD_LETTERS.name else RECORD_LIMIT_BYTES
        if value is not None and len(value) > limit:
            raise BadRecord("record_too_large", f"a record of {len(value)} bytes for {topic}, the limit is {limit}")
        if (parent := trace.current.get()) is not None and all(name != trace.HEADER for name, _ in headers):
            headers.append((trace.HEADER, parent.encode()))
        producer = self._producer
        if producer is None:
            raise Transient("the sender is not connected: start the service first")
        outside = self._names.outside(topic)
        channel = self._channel(topic)
        token = object()
        self._under_way[token] = time.monotonic()
        try:
            async with channel.turn:
                await self._must_exist(producer, topic, outside)
                future = await producer.send(outside, value, key=key, partition=partition, headers=headers)
            metadata = await future
        except MessageSizeTooLargeError as error:
            SEND_FAILURES.labels(self._stage, topic_label(topic)).inc()
            raise BadRecord("record_too_large", f"too large for the broker's {topic}: {error}") from None
        except KafkaError as error:
            SEND_FAILURES.labels(self._stage, topic_label(topic)).inc()
            await self._revive(producer, error)
            raise Transient(f"could not publish to {topic}: {type(error).__name__} {error}") from error
        finally:
            del self._under_way[token]
        channel.sent.inc()
        return Position(topic=topic, partition=metadata.partition, offset=metadata.offset)

    def _channel(self, topic: str) -> _Channel:
        channel = self._channels.get(topic)
        if channel is None:
            if len(self._channels) >= _REMEMBERED_MOST:
                self._channels.clear()
            channel = _Channel(asyncio.Lock(), RECORDS_SENT.labels(self._stage, topic_label(topic)))
            self._channels[topic] = channel
        return channel

    async def _must_exist(self, producer: AIOKafkaProducer, topic: str, outside: str) -> None:
        """The producer waits half a minute for a topic it does not know; a mistyped reply_to must not."""
        if producer.client.cluster.partitions_for_topic(outside) is not None:
            return
        now = time.monotonic()
        if self._missing.get(topic, 0.0) < now:
            if await self._admin.exists(topic):
                self._missing.pop(topic, None)
                return
            if len(self._missing) >= _REMEMBERED_MOST:
                self._missing.clear()
            self._missing[topic] = now + _MISSING_SECONDS
        raise BadRecord("unknown_topic", f"topic {topic} does not exist: create it before it is named")

    async def _connect(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(**producer_options(self._settings))
        try:
            await producer.start()
        except KafkaError as error:
            await producer.stop()
            raise not_connected(self._settings, error) from error
        return producer

    async def _revive(self, broken: AIOKafkaProducer, error: KafkaError) -> None:
        """Connect anew after an error the producer does not recover from (a lost sequence of an idempotent one)."""
        if error.retriable or isinstance(error, TopicAuthorizationFailedError | UnknownTopicOrPartitionError):
            return
        async with self._reviving:
            now = time.monotonic()
            replaced = self._producer is not broken
            if replaced or now - self._revived_at < _REVIVE_SECONDS:
                return
            self._revived_at = now
            _log.warning("producer is replaced", stage=self._stage, error=f"{type(error).__name__} {error}")
            try:
                self._producer = await self._connect()
            except Transient:
                return
        try:
            await asyncio.wait_for(broken.stop(), _STOP_SECONDS)
        except (KafkaError, TimeoutError):
            _log.debug("the replaced producer did not stop in order", stage=self._stage)


def not_connected(settings: Settings, error: KafkaError) -> Transient:
    """Why a producer could not be made, and how to mend it where that can be known."""
    if isinstance(error, UnknownError) and profile_of(settings).idempotent:
        return Transient(
            f"the broker at {settings.kafka_bootstrap} makes no idempotent producer: the embedded broker of "
            "`kvroute up` never does, and wants KVROUTE_KAFKA_PROFILE=embedded; from Apache Kafka it passes"
        )
    return Transient(f"no broker answers at {settings.kafka_bootstrap}: {error}")
