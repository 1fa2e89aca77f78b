"""An agent beside a simulated engine, on a real broker: work goes in by Kafka, everything else is read from Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.kv_event import KvEvents, KvOp
from schemas.lifecycle import Lifecycle, LifecycleEvent
from schemas.types import Message
from schemas.work import Response, Work
from schemas.worker import Heartbeat, Worker
from services.engine_sim.config import SimConfig
from services.engine_sim.server import SimEngine
from services.kv.tier import Tier
from services.layout.card import ModelCard
from services.layout.layouter import Layouter
from services.runtime.admin import Admin
from services.runtime.connection import consumer_options
from services.runtime.names import TopicNames
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import HEARTBEATS, KV_EVENTS, LIFECYCLE, RESPONSES, WORKERS, responses_topic, work_topic
from services.worker import app
from services.worker.agent import Agent

M = TypeVar("M", bound=Message)
MODEL = Path(__file__).parents[2] / "models" / "qwen2.5-vl"
REPLIES = responses_topic("worker-test")


@pytest.fixture(scope="package")
def layouter() -> Layouter:
    return Layouter(ModelCard.load(MODEL, "m"), cache_tokens=100_000)


@dataclass
class Reader:
    """Reads topics from their beginning, as any consumer could; what was read is kept."""

    settings: Settings
    _consumers: dict[str, AIOKafkaConsumer] = field(default_factory=dict)
    _values: dict[str, list[bytes]] = field(default_factory=dict)

    async def read(self, topic: str, kind: type[M]) -> list[M]:
        """All messages of a topic so far."""
        consumer = self._consumers.get(topic) or await self._open(topic)
        values = self._values.setdefault(topic, [])
        while batches := await consumer.getmany(timeout_ms=150):
            for records in batches.values():
                values += [record.value for record in records if record.value is not None]
        return [kind.from_bytes(value) for value in values]

    async def close(self) -> None:
        for consumer in self._consumers.values():
            await consumer.stop()

    async def _open(self, topic: str) -> AIOKafkaConsumer:
        async with Admin(self.settings) as admin:
            count = (await admin.partitions([topic]))[topic]
        consumer = self._consumers[topic] = AIOKafkaConsumer(**consumer_options(self.settings))
        await consumer.start()
        name = TopicNames(self.settings.topic_prefix).outside(topic)
        parts = [TopicPartition(name, number) for number in range(count)]
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        return consumer


@dataclass
class Fleet:
    """One engine and its agent."""

    settings: Settings
    engine: SimEngine
    reader: Reader
    service: Service = field(init=False)
    agent: Agent = field(init=False)

    async def start_agent(self) -> Agent:
        self.service = Service("agent", self.settings, health=False)
        self.agent = app.build(self.settings, self.service)
        await self.service.start()
        await until(lambda: self.agent.registered)
        return self.agent

    async def give(self, request_id: str, content: Any = "hello", **more: Any) -> Work:
        now = self.service.clock.now_ms()
        assert self.agent.life is not None
        body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 4}
        given: dict[str, Any] = {
            "request_id": request_id, "attempt": 1, "worker_id": "w1", "epoch": self.agent.life.epoch, "model": "m",
            "body": orjson.dumps(body).decode(), "reply_to": REPLIES, "deadline_ms": now + 60_000,
            "created_at_ms": now, "decided_at_ms": now,
        }  # fmt: skip
        work = Work(**(given | more))
        await self.service.sender.send(work_topic("w1"), work, key=work.key)
        return work

    async def ended(self, *request_ids: str) -> dict[str, Lifecycle]:
        """The last fact of each request, once all have ended."""
        while True:
            facts = await self.reader.read(LIFECYCLE.name, Lifecycle)
            ends = {fact.request_id: fact for fact in facts if fact.event is not LifecycleEvent.FIRST_TOKEN}
            if ends.keys() >= set(request_ids):
                return ends

    async def replies(self, request_id: str) -> list[Response]:
        return [reply for reply in await self.reader.read(REPLIES, Response) if reply.request_id == request_id]

    async def registrations(self) -> list[Worker]:
        return await self.reader.read(WORKERS.name, Worker)

    async def heartbeats(self) -> list[Heartbeat]:
        return await self.reader.read(HEARTBEATS.name, Heartbeat)

    async def _followed(self) -> None:
        """Give the agent time to hear of everything that its engine has said, and to pass it on."""
        (publisher,) = self.engine.backend.publishers[:1]

        def followed() -> bool:
            life = self.agent.life
            if life is None:
                return True
            slot = life.slots[0]
            return slot._tracker.expected >= publisher.sequence and not slot.translator.resident.pending

        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await until(followed)

    async def resident(self, tier: Tier = Tier.DEVICE) -> set[int]:
        """What a router holds of the newest epoch's slot 0, once the agent has passed on what it knows."""
        await self._followed()
        held = await self._read_held(tier)
        for _ in range(20):
            life = self.agent.life
            if life is None or held == set(life.slots[0].translator.resident.published(tier)):
                break
            held = await self._read_held(tier)  # a record is on its way
        return held

    async def _read_held(self, tier: Tier) -> set[int]:
        """Checks the stream while it reads."""
        records = await self.reader.read(KV_EVENTS.name, KvEvents)
        epoch = max(record.epoch for record in records)
        held: set[int] = set()
        for number, record in enumerate(record for record in records if record.epoch == epoch):
            assert record.seq == number
            if record.snapshot is not None:
                held = set() if record.snapshot.part == 0 else held
                held.update(record.snapshot.addresses if record.snapshot.tier is tier else ())
            for change in record.changes:
                if change.tier is not tier:
                    continue
                if change.op is KvOp.CLEARED:
                    held.clear()
                elif change.op is KvOp.STORED:
                    held.update(change.addresses)
                else:
                    held.difference_update(change.addresses)
            if record.resident is not None:
                assert record.resident[tier].count == len(held)
        return held


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110 - somebody else's state
        await asyncio.sleep(0.01)


StartFleet = Callable[..., Awaitable[Fleet]]


@pytest.fixture
async def fleet(settings: Settings, layouter: Layouter) -> AsyncIterator[StartFleet]:
    """Starts an engine and its agent."""
    async with AsyncExitStack() as stack:

        async def start(**options: Any) -> Fleet:
            given: dict[str, Any] = {"model": MODEL, "served_name": "m", "speedup": 1000.0}
            engine = SimEngine(SimConfig(**(given | options)), layouter=layouter)
            await engine.start()
            stack.push_async_callback(engine.stop)
            own = settings.model_copy(
                update={"worker_id": "w1", "worker_engine_url": engine.http_url, "worker_model_dir": MODEL,
                        "heartbeat_seconds": 0.2, "worker_encoder_tokens": 4096}
            )  # fmt: skip
            async with Admin(own) as admin:
                await admin.create([(REPLIES, RESPONSES)])
            made = Fleet(own, engine, Reader(own))
            stack.push_async_callback(made.reader.close)
            await made.start_agent()
            stack.push_async_callback(lambda: made.service.stop())
            return made

        yield start
