"""The agent: lives through its engine's lives, one epoch each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import structlog

from schemas.control import Control, ControlKind
from schemas.types import WorkerId
from schemas.worker import Limits, Worker, WorkerState
from services.layout.card import CardError
from services.layout.paths import layout_path
from services.runtime.bus import Record, Sender
from services.runtime.clock import Clock
from services.runtime.errors import KvrouteError, Transient
from services.runtime.metrics import AGENT_BOUND_MEDIA, AGENT_RUNNING
from services.runtime.offload import run_in_thread
from services.runtime.settings import Settings
from services.runtime.topics import HEARTBEATS, WORKERS
from services.worker.engine import Engine, EngineError, Health
from services.worker.executor import Executor
from services.worker.gauges import observe
from services.worker.kinds import Ear, EngineKind, Hearing
from services.worker.life import EngineFacts, Life
from services.worker.model_layout import ModelLayout, load_layout
from services.worker.patience import send_patiently
from services.worker.proving import Proving
from services.worker.sequence import SlotName
from services.worker.slot import Slot, Watch
from services.worker.snapshot_schedule import SnapshotSchedule

ENGINE_POLL_SECONDS = 0.5
DRAIN_NOTICE_SECONDS = 1.0
"""Work that routers sent before they saw us drain is still taken for this long."""


class Superseded(KvrouteError):
    """Another agent took this worker's name, or an operator retired it."""


class Host(Protocol):
    """What the agent uses of its service."""

    sender: Sender
    clock: Clock
    log: structlog.stdlib.BoundLogger
    instance: str

    def fail(self, error: BaseException) -> None:
        """Give up."""
        ...


class Agent:
    """Registers its worker anew for each life of the engine and keeps the lease."""

    def __init__(
        self, worker_id: WorkerId, settings: Settings, host: Host, kind: EngineKind, engine: Engine, executor: Executor,
        *, randomness: random.Random | None = None,
        layouts: Callable[[Settings, str], ModelLayout] = load_layout,
    ) -> None:
        self.worker_id = worker_id
        self.life: Life | None = None
        self.registered = False
        self.state = WorkerState.LIVE
        self._settings = settings
        self._host = host
        self._kind = kind
        self._engine = engine
        self._executor = executor
        self._random = randomness or random.Random()  # spreads snapshots and names probes, guards nothing
        self._layouts = layouts
        self._proving = Proving(settings, kind, engine, self._random, host.log)
        self._last_epoch = 0
        self._doubts = 0
        self._superseded = False
        self._overwritten = False

    # What comes from the topics

    def apply_worker(self, record: Record) -> None:
        """Take a record of ``workers``: our own last epoch, and whether somebody took our place."""
        if record.value is None or record.key != self.worker_id.encode():
            return
        worker = Worker.from_bytes(record.value)
        self._last_epoch = max(self._last_epoch, worker.epoch)
        if self.life is None or self._superseded:
            return
        if worker.epoch > self.life.epoch:
            self._supersede(
                f"worker {self.worker_id} epoch {self.life.epoch} was replaced by epoch {worker.epoch} of agent "
                f"{worker.agent or 'unknown'}: two agents must not share KVROUTE_WORKER_ID"
            )
        elif worker.epoch == self.life.epoch and worker.state is WorkerState.RETIRED:
            self._supersede(f"worker {self.worker_id} was retired by an operator: start the agent again to return")
        elif worker.epoch < self.life.epoch:
            # The agent before us, or an operator who still saw it. Of a compacted topic that record would be left.
            self._overwritten = True

    def control(self, order: Control) -> Awaitable[None] | None:
        """Take an order. What it returns is still to be awaited."""
        self._executor.control(order)
        if order.worker_id != self.worker_id:
            return None
        if order.kind is ControlKind.SNAPSHOT and self.life is not None:
            self.life.snapshot_asked(order)
        elif order.kind is ControlKind.DRAIN:
            return self.drain()
        return None

    # Living

    async def run(self) -> None:
        """Live until cancelled. What can't heal ends the service."""
        try:
            while not self._superseded:
                await self._live_once()
        except Exception as error:
            # An agent that follows nothing must not look alive.
            self._host.fail(error)

    async def _live_once(self) -> None:
        await self._until_engine_answers()
        life: Life | None = None
        try:
            life = await self._begin()
            await life.last()
            self._host.log.warning("engine ended or restarted", worker=self.worker_id, epoch=life.epoch)
        except (EngineError, Transient) as error:
            self._host.log.warning("engine not usable yet", worker=self.worker_id, error=str(error))
            await asyncio.sleep(ENGINE_POLL_SECONDS)
        finally:
            self.registered = False
            self._executor.epoch = None
            ended, self.life = self.life, None
            if ended is not None:
                await ended.end()

    async def drain(self) -> None:
        """Say that no new work should come; what runs goes on."""
        self.state = WorkerState.DRAINING
        if self.life is not None and self.registered and not self._superseded:
            await self._register(self.life)

    async def stop(self) -> None:
        """Drain, take what is on its way, let it finish."""
        if self.registered and not self._superseded:
            await self.drain()
            await asyncio.sleep(DRAIN_NOTICE_SECONDS)
        await self._executor.finish(self._settings.drain_seconds)

    async def beat(self) -> None:
        """Send a heartbeat for each slot: the lease, the load, where the snapshot is."""
        life = self.life
        if life is None or not self.registered or self._superseded:
            return
        if self._overwritten:
            self._overwritten = False
            await self._register(life)
        beats = await life.beats(self._executor.encoded)
        AGENT_RUNNING.labels(self.worker_id).set(self._executor.running)
        for slot, beat in zip(life.slots, beats, strict=True):
            observe(slot, encoded=len(beat.encoder))
        self._look_at_bindings()
        await asyncio.gather(*(self._host.sender.send(HEARTBEATS.name, beat, key=self.worker_id) for beat in beats))

    def _look_at_bindings(self) -> None:
        """Operators learn how many names are known, and when the engine turns out to have other clients."""
        bindings = self._executor.tools.bindings
        AGENT_BOUND_MEDIA.labels(self.worker_id).set(bindings.bound)
        if bindings.doubts != self._doubts:
            self._doubts = bindings.doubts
            self._host.log.error(
                "the engine has other clients, and says no session: its names for media are not believed any more",
                worker=self.worker_id, refused=dict(bindings.refused),
            )  # fmt: skip

    async def _until_engine_answers(self) -> None:
        waiting = False
        while await self._engine.health() is not Health.OK:
            if not waiting:
                self._host.log.info("waiting for the engine", worker=self.worker_id, url=self._engine.url)
                waiting = True
            await asyncio.sleep(ENGINE_POLL_SECONDS)

    async def _begin(self) -> Life:
        facts, metrics = await self._kind.facts(self._engine)
        layout = await self._layout(facts.model, facts.max_model_len)
        known = layout if isinstance(layout, ModelLayout) else None
        bindings = self._executor.tools.bindings
        bindings.renew()
        hearing = Hearing(facts, metrics, known, self._executor.salts, bindings)
        ears = await self._kind.ears(self._engine, hearing)
        if all(ear.stream is None for ear in ears):
            self._host.log.warning(
                "engine publishes no KV events: its cache counts as empty. Start it with --kv-events-config "
                '\'{"enable_kv_cache_events": true, "publisher": "zmq"}\', or set KVROUTE_WORKER_EVENTS',
                worker=self.worker_id,
            )
        epoch = max(self._host.clock.now_ms(), self._last_epoch + 1)
        self._last_epoch = epoch
        slots = self._slots(epoch, facts, ears)
        life = self.life = Life(self.worker_id, epoch, facts, slots, self._engine, self._host.clock)
        await life.begin()
        watch = Watch(slots) if any(slot.follows for slot in slots) else None
        contract = life.contract = await self._proving.contract(facts, layout, watch, bindings)
        bindings.settle((contract.image.binding, contract.video.binding))
        self._executor.begin(
            epoch, ranks=len(slots), encoder_tokens=self._encoder_tokens(), frames=contract.video.frames
        )
        await self._register(life)
        self.registered = True
        await self.beat()
        return life

    def _encoder_tokens(self) -> int:
        """Room of each rank's encoder cache, where it follows a rule we know."""
        stated = self._settings.worker_encoder_tokens
        if stated and not self._kind.keeps_encoder_outputs:
            self._host.log.warning(
                "KVROUTE_WORKER_ENCODER_TOKENS is set, but what this engine's encoder cache keeps is not known",
                worker=self.worker_id, engine=self._kind.name,
            )  # fmt: skip
            return 0
        return stated

    def _slots(self, epoch: int, facts: EngineFacts, ears: list[Ear]) -> list[Slot]:
        slots = [
            Slot(
                SlotName(self.worker_id, ear.rank, epoch, facts.model, facts.block_size), ear.stream, ear.decoder,
                self._host.sender, self._host.clock,
                SnapshotSchedule(self._settings.snapshot_seconds, self._random.uniform), ear.translator,
            )
            for ear in ears
        ]  # fmt: skip
        for slot in slots:
            slot.translator.on_reset = partial(self._executor.caches_cleared, slot.name.dp_rank)
        return slots

    async def _layout(self, model: str, max_model_len: int | None) -> ModelLayout | CardError:
        try:
            return (await run_in_thread(self._layouts, self._settings, model)).under(max_model_len)
        except CardError as error:
            return error

    async def _register(self, life: Life) -> None:
        limits = Limits(
            max_concurrency=self._settings.worker_max_concurrency, max_model_len=life.facts.max_model_len,
            num_blocks=life.facts.num_blocks,
        )  # fmt: skip
        worker = life.registration(self.state, limits, self._host.instance)
        if layout_path(self._settings, worker.model) == "render":
            url = self._settings.worker_advertised_url or self._engine.url
            worker = worker.model_copy(update={"engine_url": url})
        await send_patiently(self._host.sender, WORKERS.name, worker, key=self.worker_id)

    def _supersede(self, why: str) -> None:
        self._superseded = True
        self._executor.epoch = None
        self._host.log.error("agent exits", worker=self.worker_id, why=why)
        self._host.fail(Superseded(why))
