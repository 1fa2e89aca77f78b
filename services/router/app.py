"""The router stage: what it reads, what it waits for, what it does by the clock."""

from __future__ import annotations

import asyncio
import random

from schemas.control import Control, ControlKind
from schemas.decision import Decision
from schemas.expanded import Expanded
from services.router.following import Following, read
from services.router.key_locks import KeyLocks
from services.router.policies import POLICIES
from services.router.requests import RequestState
from services.router.rerouting import Rerouting
from services.router.routing import STAGE, Routing
from services.router.situation import Parameters
from services.router.state import RouterState
from services.runtime.bus import Record
from services.runtime.errors import ConfigError, Transient
from services.runtime.metrics import (
    ROUTER_INDEX_ENTRIES,
    ROUTER_REPEATED,
    ROUTER_REQUESTS_OPEN,
    ROUTER_SNAPSHOTS_ASKED,
    ROUTER_UNCERTAIN_SLOTS,
)
from services.runtime.projection import AT_END, Start
from services.runtime.refusal import cancelled, deadline_exceeded, refuse
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import CONTROL, DECISIONS, EXPANDED, HEARTBEATS, HOUR_MS, KV_EVENTS, LIFECYCLE, WORKERS

GROUP = "router"
LOOK_SECONDS = 0.5
"""How often lapsed leases and wanted snapshots are looked for."""
TIDY_SECONDS = 5.0
GATE_POLL_SECONDS = 0.05
BROKER_PATIENCE_SECONDS = 2.0
"""How long the broker may take to answer before it counts as away."""


def build(settings: Settings, service: Service) -> Router:
    """Register the stage on a service. Raises ConfigError for a policy that does not exist."""
    router = Router(settings, service)
    router.register()
    return router


class Router:
    """The wiring of one replica."""

    def __init__(self, settings: Settings, service: Service) -> None:
        policy = POLICIES.get(settings.policy)
        if policy is None:
            raise ConfigError(f"policy is {settings.policy!r}, set KVROUTE_POLICY to one of {', '.join(POLICIES)}")
        self._settings = settings
        self._service = service
        self.state = RouterState(
            lease_seconds=settings.lease_seconds,
            heartbeat_seconds=settings.heartbeat_seconds,
            started=service.clock.monotonic(),
            batch=settings.concurrency,
            random=random.random,
        )
        self._locks = KeyLocks()
        self._routing = Routing(service, self.state, policy, parameters_of(settings))
        self._rerouting = Rerouting(service, self.state, self._routing, self._locks)
        self._following = Following(service, self.state)

    def register(self) -> None:
        """Say what is read and what is done by the clock."""
        service, following = self._service, self._following
        following.on_request = self._rerouting.look
        following.on_life_ended = self._rerouting.look_at_life
        following.on_lost = self._lost
        since_ms = service.clock.now_ms() - HOUR_MS
        service.follow_control()
        service.cancellations.on_control(following.control)
        service.project(WORKERS, following.worker)
        following.heartbeats = service.project(HEARTBEATS, following.heartbeat)
        self._decisions = service.project(DECISIONS, following.decision, start=Start.SINCE, since_ms=since_ms)
        self._lifecycle = service.project(LIFECYCLE, following.lifecycle, start=Start.SINCE, since_ms=since_ms)
        service.project(KV_EVENTS, following.kv_events, offsets=self._kv_offsets)
        service.consume(EXPANDED, self.handle, group=GROUP, on_assigned=self._gate, on_revoked=self._revoked)
        service.on_start(self._begin)
        service.every(LOOK_SECONDS, self._look, name="look")
        service.every(TIDY_SECONDS, self._tidy, name="tidy")
        service.ready_when("workers are not heard yet", self._settled)

    async def handle(self, record: Record) -> None:
        """Route one expanded request, or send again what was decided for it. Raises BadRecord or Transient."""
        expanded = read(Expanded, record)
        async with self._locks.hold(expanded.key):
            known = self.state.requests.get(expanded.key)
            if known is not None:
                await self._repeat(expanded, known)
            elif self.state.requests.settled(expanded.key):
                ROUTER_REPEATED.labels("nothing").inc()
            elif self._service.cancellations.is_cancelled(expanded.key):
                await refuse(self._service, expanded, cancelled(), stage=STAGE)
            elif (late := self._service.clock.now_ms() - expanded.deadline_ms) >= 0:
                await refuse(self._service, expanded, deadline_exceeded(late), stage=STAGE)
            else:
                await self._routing.route(expanded, record.position)

    async def _repeat(self, expanded: Expanded, state: RequestState) -> None:
        """The record came again (a new owner, or the same request twice): what was decided stands."""
        standing = state.standing
        if self._rerouting.pending(state):
            ROUTER_REPEATED.labels("again").inc()
            self._rerouting.look(state.key)
        elif standing.started or standing.end is not None:
            ROUTER_REPEATED.labels("nothing").inc()
        else:
            ROUTER_REPEATED.labels("same_work").inc()
            await self._routing.resume(expanded, standing.decision)

    def _lost(self, decision: Decision) -> None:
        self._service.spawn(self._give_way(decision), name="give way")

    async def _give_way(self, decision: Decision) -> None:
        await self._routing.cancel_lost(decision)
        self._rerouting.resend(decision.key)

    async def _begin(self) -> None:
        self.state.fleet.begin(self._service.clock.monotonic())

    async def _gate(self, partitions: frozenset[int]) -> None:
        """Nothing is routed before everything that was decided until now has been read: a decision is made once."""
        decisions = await self._service.highwater(DECISIONS)
        facts = await self._service.highwater(LIFECYCLE)
        await self._decisions.wait_past(decisions)
        await self._lifecycle.wait_past(facts)
        while not self._settled() or self.state.kv.behind:  # noqa: ASYNC110 - time itself is one of the events
            await asyncio.sleep(GATE_POLL_SECONDS)
        await self._tidy()
        self._rerouting.take_over(partitions)

    async def _revoked(self, partitions: frozenset[int]) -> None:
        self._rerouting.owned -= partitions

    def _settled(self) -> bool:
        return self.state.fleet.settled(self._service.clock.monotonic())

    def _kv_offsets(self) -> dict[int, int]:
        """Where to begin: the lowest snapshot of live slots. Where none is, what is there already says nothing."""
        count = self._settings.kafka_partitions or KV_EVENTS.partitions
        return dict.fromkeys(range(count), AT_END) | self.state.fleet.snapshot_offsets()

    async def _look(self) -> None:
        await self._listen()
        self._following.work_on()
        self._rerouting.look_at_all()
        now = self._service.clock.monotonic()
        for life in self.state.kv.snapshot_requests(now):
            if not self.state.fleet.leased(life, now):
                continue
            ROUTER_SNAPSHOTS_ASKED.inc()
            order = Control(
                kind=ControlKind.SNAPSHOT,
                at_ms=self._service.clock.now_ms(),
                worker_id=life.worker_id,
                dp_rank=life.dp_rank,
                epoch=life.epoch,
                reason="the index of the slot is uncertain",
            )
            await self._service.sender.send(CONTROL.name, order, key=order.key)

    async def _listen(self) -> None:
        """Nobody is heard: if it is the broker that is away, silence says nothing about the workers."""
        if not self.state.fleet.quiet(self._service.clock.monotonic()):
            return
        try:
            await asyncio.wait_for(self._service.highwater(HEARTBEATS, 0), BROKER_PATIENCE_SECONDS)
        except (Transient, TimeoutError):
            self.state.fleet.begin(self._service.clock.monotonic())

    async def _tidy(self) -> None:
        kv = self.state.kv
        self.state.tidy(self._service.clock.monotonic(), self._service.clock.now_ms())
        ROUTER_INDEX_ENTRIES.set(sum(len(index) for index in kv.indexes.values()))
        ROUTER_UNCERTAIN_SLOTS.set(sum(stream.uncertain for stream in kv.streams.values()))
        ROUTER_REQUESTS_OPEN.set(len(self.state.requests))


def parameters_of(settings: Settings) -> Parameters:
    """The weights and scales of the settings."""
    return Parameters(
        overlap_credit=settings.policy_overlap_credit,
        prefill_scale=settings.policy_prefill_scale,
        request_weight=settings.policy_request_weight,
        temperature=settings.policy_temperature,
        vision_weight=settings.policy_vision_weight,
        encoder_credit=settings.policy_encoder_credit,
        busy_kv_usage=settings.router_busy_kv_usage,
        busy_waiting=float(settings.router_busy_waiting),
    )
