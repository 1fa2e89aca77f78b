"""Agents without engines: they register, beat, tell of caches, take work once, and say how it went."""

from __future__ import annotations

import asyncio
from collections import Counter

from schemas.kv_event import KvChange, KvEvents, KvOp, KvSnapshot
from schemas.lifecycle import Lifecycle, LifecycleEvent
from schemas.types import request_key
from schemas.work import Work
from schemas.worker import Heartbeat, Worker
from services.runtime.bus import Record
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import HEARTBEATS, KV_EVENTS, LIFECYCLE, WORK, WORKERS, work_topic

MODEL = "qwen"
BEAT_SECONDS = 0.3


class Agents:
    """Several agents in this process. ``executed`` counts (request, attempt) as agents run them."""

    def __init__(self, settings: Settings, names: tuple[str, ...]) -> None:
        self.service = Service("agents", settings, health=False)
        self.names = names
        self.epochs = dict.fromkeys(names, 1)
        self.deaf: set[str] = set()
        self.received: list[Work] = []
        self.executed: Counter[tuple[str, int, str]] = Counter()
        self.seconds = 0.02
        self._seqs = dict.fromkeys(names, 0)
        self._snapshots: dict[str, object] = {}

    async def start(self) -> None:
        for name in self.names:
            await self.service.ensure_topic(work_topic(name), WORK)
            self.service.consume_from(work_topic(name), self._take, offset=0, concurrency=64)
        self.service.every(BEAT_SECONDS, self._beat, name="beat")
        await self.service.start()
        for name in self.names:
            await self.register(name)
        await self._beat()

    async def register(self, name: str) -> None:
        worker = Worker(worker_id=name, epoch=self.epochs[name], model=MODEL, block_size=16, at_ms=0)
        await self.service.sender.send(WORKERS.name, worker, key=name)
        self._seqs[name] = 0
        self._snapshots[name] = await self._events(name, snapshot=KvSnapshot(id=0, part=0, parts=1))

    async def store(self, name: str, addresses: list[int]) -> None:
        await self._events(name, changes=[KvChange(op=KvOp.STORED, addresses=addresses)])

    async def _events(self, name: str, **fields) -> object:
        event = KvEvents(
            worker_id=name, epoch=self.epochs[name], seq=self._seqs[name], model=MODEL, block_size=16, **fields
        )  # fmt: skip
        self._seqs[name] += 1
        return await self.service.sender.send(KV_EVENTS.name, event, key=name)

    async def _beat(self) -> None:
        for name in self.names:
            if name not in self.deaf:
                beat = Heartbeat(
                    worker_id=name, epoch=self.epochs[name], at_ms=self.service.clock.now_ms(),
                    snapshot=self._snapshots.get(name),
                )  # fmt: skip
                await self.service.sender.send(HEARTBEATS.name, beat, key=name)

    async def _take(self, record: Record) -> None:
        work = Work.from_bytes(record.value or b"")
        if work.worker_id in self.deaf or work.epoch != self.epochs[work.worker_id]:
            return
        self.received.append(work)
        key = (request_key(work.tenant, work.request_id), work.attempt, work.worker_id)
        self.executed[key] += 1
        if self.executed[key] == 1:
            await self._state(work, LifecycleEvent.FIRST_TOKEN)
            await asyncio.sleep(self.seconds)
            await self._state(work, LifecycleEvent.FINISHED)

    async def _state(self, work: Work, event: LifecycleEvent) -> None:
        fact = Lifecycle(
            request_id=work.request_id, attempt=work.attempt, event=event, stage="agent", worker_id=work.worker_id,
            at_ms=self.service.clock.now_ms(), created_at_ms=work.created_at_ms, epoch=work.epoch,
        )  # fmt: skip
        await self.service.sender.send(LIFECYCLE.name, fact, key=fact.key)
