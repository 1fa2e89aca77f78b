"""The router's projections: records in, state changed. What must be sent because of them is left to others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from schemas.control import Control, ControlKind
from schemas.decision import Decision
from schemas.kv_event import KvEvents
from schemas.lifecycle import Lifecycle
from schemas.types import Message
from schemas.worker import Heartbeat, Worker
from services.router.requests import Verdict
from services.router.slots import SlotEpoch
from services.router.state import RouterState
from services.runtime.bus import Record
from services.runtime.errors import BadRecord
from services.runtime.metrics import ROUTER_KV_ADDRESSES, ROUTER_KV_ANOMALIES
from services.runtime.projection import Projection
from services.runtime.service import Service

M = TypeVar("M", bound=Message)


def read(kind: type[M], record: Record) -> M:
    """Decode a record's value. Raises BadRecord."""
    try:
        return kind.from_bytes(record.value or b"")
    except ValueError as error:
        raise BadRecord("invalid_message", f"{record.topic} record is no {kind.SCHEMA}: {error}") from None


class Following:
    """Applies the records of workers, heartbeats, kv-events, decisions, lifecycle and control."""

    def __init__(self, service: Service, state: RouterState) -> None:
        self._service = service
        self._state = state
        self.heartbeats: Projection | None = None
        """Set once it is registered: until it has caught up, heartbeats grant no lease."""
        self.on_request: Callable[[str], None] = lambda key: None
        """Told of a request something happened to that may call for another attempt."""
        self.on_life_ended: Callable[[SlotEpoch], None] = lambda life: None
        """Told of an epoch that was replaced or retired."""
        self.on_lost: Callable[[Decision], None] = lambda decision: None
        """Told of a decision of this router that another one was before."""
        self._pumping = False

    def worker(self, record: Record) -> None:
        """Apply a registration or its deletion (a tombstone)."""
        worker = read(Worker, record) if record.value is not None else None
        name = worker.worker_id if worker is not None else (record.key or b"").decode(errors="replace")
        for life in self._state.registered(name, worker, self._service.clock.now_ms()):
            self.on_life_ended(life)

    def heartbeat(self, record: Record) -> None:
        """Apply a heartbeat. One that was there before this router started grants no lease."""
        fresh = self.heartbeats is None or self.heartbeats.caught_up
        self._state.fleet.heartbeat(read(Heartbeat, record), self._service.clock.monotonic(), fresh=fresh)

    def kv_events(self, record: Record) -> None:
        """Queue a record of a slot's cache and apply what can be applied in one slice."""
        kv = self._state.kv
        try:
            event = read(KvEvents, record)
        except BadRecord:
            kv.skip(record.partition, record.offset)
            raise
        before = kv.anomalies.copy()
        kv.take(record.partition, record.offset, event, self._service.clock.monotonic())
        self.work_on()
        for anomaly, count in (kv.anomalies - before).items():
            ROUTER_KV_ANOMALIES.labels(anomaly.value).inc(count)
        for change in event.changes:
            ROUTER_KV_ADDRESSES.labels(change.op.value).inc(len(change.addresses))

    def work_on(self) -> None:
        """Do one slice of what waits at the index, and leave the rest to a task."""
        if self._state.kv.work() and not self._pumping:
            self._pumping = True
            self._service.spawn(self._pump(), name="kv slices")

    def decision(self, record: Record) -> None:
        """Apply a decision: the first one read for an attempt is the one."""
        decision = read(Decision, record)
        verdict = self._state.decided(decision, self._service.clock.now_ms(), confirmed=True)
        if verdict is Verdict.LOST and decision.router == self._service.instance:
            self.on_lost(decision)
        self.on_request(decision.key)

    def lifecycle(self, record: Record) -> None:
        """Apply a fact."""
        fact = read(Lifecycle, record)
        self._state.fact(fact, self._service.clock.now_ms())
        self.on_request(fact.key)

    def control(self, order: Control) -> None:
        """Apply an order that concerns routers."""
        if order.kind is ControlKind.DONE and order.request_id is not None:
            self._state.done(order.key, self._service.clock.now_ms())

    async def _pump(self) -> None:
        try:
            while self._state.kv.work():  # noqa: ASYNC110 - nothing is waited for, others get their turn
                await asyncio.sleep(0)
        finally:
            self._pumping = False
