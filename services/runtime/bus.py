"""What stages see of Kafka: records in, messages out. Everything else of the broker stays behind this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from schemas.decision import Position
from schemas.types import Message


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it was read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def position(self) -> Position:
        """Where the record stands."""
        return Position(topic=self.topic, partition=self.partition, offset=self.offset)


class Sender(Protocol):
    """Publishes messages. Sends are pipelined; awaiting one means the broker has it."""

    async def send(
        self,
        topic: str,
        message: Message | None,
        *,
        key: str,
        partition: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Position:
        """Publish and wait for the ack. ``None`` is a tombstone. Raises Transient when the broker can't be reached."""
        ...

    async def send_raw(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        partition: int | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> Position:
        """Publish bytes as they are."""
        ...
