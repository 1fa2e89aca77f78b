"""A router on a service in memory, and the questions tests ask of it."""

from __future__ import annotations

import asyncio

from schemas.control import Control
from schemas.decision import Decision
from schemas.kv_event import KvChange, KvEvents, KvOp, KvSnapshot
from schemas.lifecycle import Lifecycle
from schemas.lifecycle import LifecycleEvent as Event
from schemas.work import Response, Work
from services.router.app import Router, build
from services.runtime.bus import Record
from services.runtime.projection import Projection
from services.runtime.settings import Settings
from services.runtime.topics import CONTROL, DECISIONS, EXPANDED, HEARTBEATS, KV_EVENTS, LIFECYCLE, WORKERS, work_topic
from tests.fakes import FakeClock, Harness
from tests.unit.router import build as make
from tests.unit.router.build import NOW_MS, chain, heartbeat, worker

REPLY = "kvroute.responses.me"


class Stage:
    """A router, its service, and the questions tests ask of it."""

    def __init__(self, harness: Harness, router: Router) -> None:
        self.harness = harness
        self.router = router
        self.clock = harness.clock
        self._seqs: dict[str, int] = {}

    async def meet(self, *names: str, epoch: int = 1, **fields) -> None:
        for name in names:
            await self.harness.push(WORKERS, worker(name, epoch=epoch, **fields))
            await self.beat(name, epoch=epoch)

    async def beat(self, name: str, *, epoch: int = 1, **fields) -> None:
        await self.harness.push(HEARTBEATS, heartbeat(name, epoch=epoch, **fields))

    async def hold(self, name: str, blocks: int, *, epoch: int = 1, root: int = 1) -> None:
        """Let events say that a worker holds the first blocks of a prompt."""
        seq = self._seqs.get(name, 0)
        snapshot = KvSnapshot(id=0, part=0, parts=1) if seq == 0 else None
        changes = [] if seq == 0 else [KvChange(op=KvOp.STORED, addresses=chain(blocks, root))]
        self._seqs[name] = seq + 1
        event = KvEvents(
            worker_id=name, epoch=epoch, seq=seq, model=make.MODEL, block_size=16, snapshot=snapshot, changes=changes
        )  # fmt: skip
        await self.harness.push(KV_EVENTS, event, key=name)
        if seq == 0:
            await self.hold(name, blocks, epoch=epoch, root=root)

    async def ask(self, request_id: str = "r1", **fields) -> Record:
        fields.setdefault("reply_to", REPLY)
        return await self.harness.push(EXPANDED, make.expanded(request_id, **fields))

    async def ask_without_owner(self) -> Record:
        """An expanded record that another replica has handled."""
        request = make.expanded(reply_to=REPLY)
        record = self.harness.sender.record(EXPANDED.name, request.to_bytes(), request.key.encode(), None)
        self.harness.stored[record.topic, record.partition, record.offset] = record
        return record

    async def tell(self, event: Event, request_id: str = "r1", attempt: int = 1, **fields) -> None:
        await self.harness.push(LIFECYCLE, make.fact(event, request_id, attempt, **fields))
        await self.settle()

    async def settle(self) -> None:
        """Let spawned tasks finish."""
        for task in self.harness.tasks:
            await asyncio.wait_for(asyncio.shield(task), 5)

    def decisions(self) -> list[Decision]:
        return self.harness.sender.messages(DECISIONS.name, Decision)

    def decisions_projection(self) -> Projection:
        return next(p for p in self.harness.projections if p.topic is DECISIONS)

    def work(self, name: str) -> list[Work]:
        return self.harness.sender.messages(work_topic(name), Work)

    def all_work(self) -> list[tuple[str, int]]:
        works = [sent.message for sent in self.harness.sender.sent if isinstance(sent.message, Work)]
        return [(work.worker_id, work.attempt) for work in works]

    def answers(self) -> list[Response]:
        return self.harness.sender.messages(REPLY, Response)

    def facts(self) -> list[tuple[Event, int, str | None]]:
        return [(f.event, f.attempt, f.code) for f in self.harness.sender.messages(LIFECYCLE.name, Lifecycle)]

    def orders(self) -> list[Control]:
        return self.harness.sender.messages(CONTROL.name, Control)


def start(settings: Settings | None = None, *, instance: str = "router-1", loopback: bool = True) -> Stage:
    settings = (settings or Settings()).model_copy(update={"instance": instance})
    harness = Harness("router", settings, clock=FakeClock(NOW_MS), loopback=loopback)
    return Stage(harness, build(settings, harness))
