from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from schemas.control import Control, ControlKind
from schemas.kv_event import KvEvents, KvOp
from schemas.lifecycle import Lifecycle
from schemas.lifecycle import LifecycleEvent as Event
from schemas.types import Message
from schemas.work import Response, Work
from schemas.worker import Heartbeat, Worker
from services.kv.tier import Tier
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import HEARTBEATS, KV_EVENTS, LIFECYCLE, WORKERS, work_topic
from services.worker import agent as agent_module
from services.worker import app, life
from services.worker.agent import Agent
from tests.fakes import Harness
from tests.unit.worker.fake_engine import MODEL, FakeEngine

REPLIES = "kvroute.responses.test"


@dataclass
class Stand:
    """An agent beside a fake engine, on an in-memory service."""

    engine: FakeEngine
    harness: Harness
    agent: Agent = field(init=False)

    def begin(self) -> Stand:
        self.agent = app.build(
            self.harness.settings, cast(Service, self.harness), randomness=random.Random(1)
        )
        return self

    async def start(self) -> Stand:
        """Start the agent and wait until it is registered."""
        await self.harness.start()
        await self.until(lambda: self.agent.registered and self.heartbeats)
        return self

    async def until(self, condition: Callable[[], Any], what: str = "") -> None:
        """Wait for something that must happen; the suite's timeout ends what never does."""
        while not condition():
            assert self.harness.failure is None or "failure" in what, self.harness.failure
            await asyncio.sleep(0.005)

    def sent(self, topic: str, kind: type[Message]) -> list[Any]:
        return self.harness.sender.messages(topic, kind)

    @property
    def registrations(self) -> list[Worker]:
        return self.sent(WORKERS.name, Worker)

    @property
    def heartbeats(self) -> list[Heartbeat]:
        return self.sent(HEARTBEATS.name, Heartbeat)

    @property
    def kv_events(self) -> list[KvEvents]:
        return self.sent(KV_EVENTS.name, KvEvents)

    @property
    def facts(self) -> list[Lifecycle]:
        return self.sent(LIFECYCLE.name, Lifecycle)

    @property
    def replies(self) -> list[Response]:
        return self.sent(REPLIES, Response)

    def resident(self, epoch: int | None = None) -> set[int]:
        """What a router holds of the slot's device tier after all records of the newest (or this) epoch."""
        epoch = epoch or self.kv_events[-1].epoch
        held: set[int] = set()
        for number, record in enumerate(record for record in self.kv_events if record.epoch == epoch):
            assert record.seq == number
            if record.snapshot is not None:
                held = set() if record.snapshot.part == 0 else held
                held.update(record.snapshot.addresses)
            for change in record.changes:
                if change.op is KvOp.CLEARED:
                    held.clear()
                elif change.op is KvOp.STORED:
                    held.update(change.addresses)
                else:
                    held.difference_update(change.addresses)
            if record.resident is not None:
                assert record.resident[Tier.DEVICE].count == len(held)
        return held

    def device(self) -> set[int]:
        """What the agent holds, whether it is published yet or not."""
        assert self.agent.life is not None
        return set(self.agent.life.slots[0].translator.resident.published(Tier.DEVICE))

    def work(self, request_id: str = "r1", **more: Any) -> Work:
        """An order for this agent's epoch."""
        now = self.harness.clock.now_ms()
        assert self.agent.life is not None
        given: dict[str, Any] = {
            "request_id": request_id, "attempt": 1, "worker_id": "w1", "epoch": self.agent.life.epoch, "model": MODEL,
            "body": '{"model":"m","messages":[{"role":"user","content":"hi"}]}', "reply_to": REPLIES,
            "deadline_ms": now + 60_000, "created_at_ms": now, "decided_at_ms": now,
        }  # fmt: skip
        return Work(**(given | more))

    async def give(self, work: Work) -> None:
        """Put an order into the agent's topic."""
        await self.harness.push(work_topic("w1"), work, key=work.key)

    async def ended(self, *requests: str) -> None:
        """Wait until the attempts in hand have ended."""
        await self.until(lambda: self.agent._executor.running == 0)


def kinds(stand: Stand) -> list[Event]:
    return [fact.event for fact in stand.facts]


def cancel(stand: Stand, **more: Any) -> Control:
    given = {"kind": ControlKind.CANCEL, "request_id": "r1", "at_ms": stand.harness.clock.now_ms()}
    return Control(**(given | more))


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as fake:
        yield fake


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """Settings of the agent, for a test to change."""
    return {"worker_id": "w1", "data_dir": tmp_path, "drain_seconds": 1.0}


@pytest.fixture
async def stand(
    engine: FakeEngine, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stand]:
    """Not started yet."""
    monkeypatch.setattr(life, "HEALTH_SECONDS", 0.02)
    monkeypatch.setattr(agent_module, "ENGINE_POLL_SECONDS", 0.02)
    monkeypatch.setattr(agent_module, "DRAIN_NOTICE_SECONDS", 0.02)
    harness = Harness("agent", Settings(worker_engine_url=engine.url, **settings))
    made = Stand(engine, harness).begin()
    yield made
    await harness.stop()
