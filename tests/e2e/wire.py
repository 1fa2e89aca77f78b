"""A user of Kafka without kvroute's code: bytes into requests, answers and dead letters out."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from services.runtime.settings import Settings
from tests.waiting import eventually

REQUESTS = "kvroute.requests.v1"
DEAD_LETTERS = "kvroute.dead-letters.v1"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One, as a reader of the topic sees it."""

    value: bytes | None
    headers: Mapping[str, str]

    @property
    def code(self) -> str:
        """Why it was given up."""
        return self.headers.get("dlq-code", "")


class Wire:
    """Plain aiokafka. ``answers`` holds every piece by request id, ``dead`` every dead letter."""

    def __init__(self, settings: Settings, reply_to: str) -> None:
        self._bootstrap = settings.kafka_bootstrap
        self._prefix = settings.topic_prefix
        self.reply_to = reply_to
        self.answers: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.dead: list[DeadLetter] = []
        self._producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, max_request_size=4 << 20)
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=4 << 20
        )
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(self._prefix + self.reply_to, num_partitions=1, replication_factor=1)])
        await admin.close()
        await self._producer.start()
        await self._consumer.start()
        self._consumer.assign(
            [TopicPartition(self._prefix + self.reply_to, 0)]
            + [TopicPartition(self._prefix + DEAD_LETTERS, partition) for partition in range(3)]
        )
        self._reading = asyncio.ensure_future(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reading is not None:
            self._reading.cancel()
        await self._consumer.stop()
        await self._producer.stop()

    def outside(self, topic: str) -> str:
        """A topic's name on the broker."""
        return self._prefix + topic

    async def put(
        self, value: bytes | None, *, topic: str = REQUESTS, key: bytes | None = None, **headers: bytes
    ) -> None:
        """One record as it is."""
        await self._producer.send_and_wait(
            self._prefix + topic, value, key=key or b"raw", headers=list(headers.items())
        )

    async def ask(self, request: Mapping[str, Any], **headers: bytes) -> None:
        """A request that answers to ``reply_to`` unless it says otherwise."""
        value = json.dumps({"reply_to": self.reply_to, **request}).encode()
        await self.put(value, key=str(request["request_id"]).encode(), **headers)

    async def final(self, request_id: str) -> dict[str, Any]:
        """The final piece of an answer."""
        await eventually(lambda: any(piece["final"] for piece in self.answers[request_id]), f"answer to {request_id}")
        return next(piece for piece in self.answers[request_id] if piece["final"])

    async def error(self, request_id: str) -> tuple[int, str]:
        """Status and code of the error a request ended with."""
        error = (await self.final(request_id))["error"]
        return error["status"], error["code"]

    async def buried(self, number: int) -> list[DeadLetter]:
        """All dead letters, once there are so many."""
        await eventually(lambda: len(self.dead) >= number, f"{number} dead letters, there are {len(self.dead)}")
        return self.dead

    async def ends(self, topic: str, partitions: int) -> list[int]:
        """Records ever written to each partition of a topic (read to its end: every broker tells that right)."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            found = []
            for partition in range(partitions):
                tp = TopicPartition(self._prefix + topic, partition)
                consumer.assign([tp])
                records = await consumer.getmany(tp, timeout_ms=1000)
                while records:
                    records = await consumer.getmany(tp, timeout_ms=300)
                found.append(await consumer.position(tp))
            return found
        finally:
            await consumer.stop()

    async def _read(self) -> None:
        async for record in self._consumer:
            if record.topic == self._prefix + DEAD_LETTERS:
                headers = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers}
                self.dead.append(DeadLetter(record.value, headers))
            else:
                piece = json.loads(record.value)
                self.answers[piece["request_id"]].append(piece)
