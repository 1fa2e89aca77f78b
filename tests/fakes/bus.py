"""A sender that keeps what is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from schemas.decision import Position
from schemas.types import Message
from services.runtime.bus import Record
from tests.fakes.clock import FakeClock

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Sent:
    """One record as a stage sent it; ``message`` is None for tombstones and raw sends."""

    record: Record
    message: Message | None

    @property
    def topic(self) -> str:
        """Where it went."""
        return self.record.topic

    @property
    def key(self) -> str:
        """Its key as text."""
        return (self.record.key or b"").decode()

    @property
    def headers(self) -> dict[str, str]:
        """Its headers as text."""
        return {name: value.decode() for name, value in self.record.headers}


class FakeSender:
    """Keeps sends in order, gives offsets per partition, and fails when told to.

    ``partitions`` says how many partitions a topic has (default 1); the partition of a key is stable, not Kafka's.
    """

    def __init__(self, clock: FakeClock | None = None, partitions: Mapping[str, int] | None = None) -> None:
        self.clock = clock or FakeClock()
        self.sent: list[Sent] = []
        self.partitions = dict(partitions or {})
        self.on_sent: Callable[[Record], None] | None = None
        self._offsets: dict[tuple[str, int], int] = {}
        self._failures: list[tuple[str | None, Exception]] = []

    def fail_next(self, error: Exception, topic: str | None = None, times: int = 1) -> None:
        """Let the next sends (to a topic, or any) raise."""
        self._failures.extend([(topic, error)] * times)

    def of(self, topic: str) -> list[Sent]:
        """What was sent to a topic."""
        return [sent for sent in self.sent if sent.topic == topic]

    def messages(self, topic: str, kind: type[M]) -> list[M]:
        """The messages sent to a topic, decoded from their bytes as a reader would."""
        return [kind.from_bytes(sent.record.value) for sent in self.of(topic) if sent.record.value is not None]

    def clear(self) -> None:
        """Forget what was sent; offsets go on."""
        self.sent.clear()

    async def send(
        self,
        topic: str,
        message: Message | None,
        *,
        key: str,
        partition: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Position:
        """Keep a message."""
        raw = {name: value.encode() for name, value in (headers or {}).items()}
        if message is not None:
            raw = {"schema": message.SCHEMA.encode(), "content-type": b"application/json"} | raw
        value = None if message is None else message.to_bytes()
        return self._keep(topic, value, key.encode(), partition, raw, message)

    async def send_raw(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        partition: int | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> Position:
        """Keep bytes."""
        return self._keep(topic, value, key, partition, dict(headers or {}), None)

    def record(self, topic: str, value: bytes | None, key: bytes | None, partition: int | None = None) -> Record:
        """Make a record with the next offset of its partition, as if the broker had taken it."""
        if partition is None:
            partition = sum(key or b"") % self.partitions.get(topic, 1)
        offset = self._offsets.get((topic, partition), 0)
        self._offsets[topic, partition] = offset + 1
        return Record(topic, partition, offset, self.clock.now_ms(), key, value)

    def highwater(self, topic: str, partition: int) -> int:
        """The offset the next record of a partition gets."""
        return self._offsets.get((topic, partition), 0)

    def _keep(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: Mapping[str, bytes],
        message: Message | None,
    ) -> Position:
        for index, (only, error) in enumerate(self._failures):
            if only in (None, topic):
                del self._failures[index]
                raise error
        made = self.record(topic, value, key, partition)
        record = Record(made.topic, made.partition, made.offset, made.timestamp_ms, key, value, tuple(headers.items()))
        self.sent.append(Sent(record, message))
        if self.on_sent is not None:
            self.on_sent(record)
        return record.position
