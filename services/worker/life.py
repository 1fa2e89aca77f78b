"""One epoch: one life of the agent with one life of its engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schemas.control import Control
from schemas.types import WorkerId
from schemas.worker import Contract, Heartbeat, Limits, Load, Worker, WorkerState
from services.runtime.clock import Clock
from services.worker.engine import Engine, EngineError, Health
from services.worker.engine_metrics import EngineMetrics
from services.worker.slot import Slot

HEALTH_SECONDS = 1.0
GONE_TIMES = 2
"""Refused connections in a row after which an engine has ended; being slow or unwell is not that."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine says about itself when its life begins."""

    model: str
    loras: tuple[str, ...]
    version: str
    block_size: int
    max_model_len: int | None = None
    num_blocks: int | None = None
    page_size: int | None = None
    """Tokens of a block as the engine announces it, where that is not the block size that is routed with."""
    engine: str = "vllm"
    started_at: float | None = None


class Life:
    """Slots, health and reports of one epoch."""

    def __init__(
        self, worker_id: WorkerId, epoch: int, facts: EngineFacts, slots: Sequence[Slot], engine: Engine, clock: Clock
    ) -> None:
        self.epoch = epoch
        self.facts = facts
        self.slots = slots
        self.healthy = True
        self.contract: Contract | None = None
        self._worker_id = worker_id
        self._engine = engine
        self._clock = clock
        self._loads: dict[int, Load] = {}
        self._started_at = facts.started_at
        self._another = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Catch up with every rank's events, publish the first snapshots, and follow."""
        await asyncio.gather(*(slot.begin() for slot in self.slots))
        self._tasks = [asyncio.create_task(slot.follow(), name=f"slot {slot.name.dp_rank}") for slot in self.slots]
        self._tasks.append(asyncio.create_task(self._watch_health(), name="engine health"))
        self._tasks.append(asyncio.create_task(self._wait_for_another(), name="engine process"))

    async def last(self) -> None:
        """Return when the engine has ended or restarted. Raises what a slot died of."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def end(self) -> None:
        """Stop following."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for slot in self.slots:
            slot.close()

    def snapshot_asked(self, order: Control) -> None:
        """Somebody is uncertain about a slot of ours."""
        if order.epoch not in (None, self.epoch):
            return
        for slot in self.slots:
            if order.dp_rank in (None, slot.name.dp_rank):
                slot.publisher.ask_snapshot()

    def registration(self, state: WorkerState, limits: Limits, agent: str) -> Worker:
        """What routers have to know."""
        facts = self.facts
        return Worker(
            worker_id=self._worker_id, epoch=self.epoch, state=state, dp_size=len(self.slots), engine=facts.engine,
            engine_version=facts.version, model=facts.model, loras=list(facts.loras), block_size=facts.block_size,
            contract=self.contract, limits=limits, at_ms=self._clock.now_ms(), agent=agent,
        )  # fmt: skip

    async def beats(self, encoded: Callable[[int], list[int]] = lambda rank: []) -> list[Heartbeat]:
        """A heartbeat for each slot; load as the engine reports it right now, or as it last did.

        ``encoded`` gives, for a rank, the media whose encoder outputs it holds.
        """
        answering = True
        try:
            metrics = await self._engine.metrics()
            self._loads = metrics.loads
            self._compare_start(metrics.started_at)
        except EngineError:
            answering = False
        return [
            Heartbeat(
                worker_id=self._worker_id, dp_rank=slot.name.dp_rank, epoch=self.epoch, at_ms=self._clock.now_ms(),
                healthy=self.healthy and answering, load=self._loads.get(slot.name.dp_rank, Load()),
                snapshot=slot.publisher.snapshot, seq=slot.publisher.last_seq,
                encoder=encoded(slot.name.dp_rank),
            )
            for slot in self.slots
        ]  # fmt: skip

    def _compare_start(self, started_at: float | None) -> None:
        """A process that began at another moment, twice in a row, is another engine: one that restarted at once."""
        if started_at is None or self.facts.started_at is None or started_at == self.facts.started_at:
            self._started_at = self.facts.started_at
        elif started_at == self._started_at:
            self._another.set()
        else:
            self._started_at = started_at

    async def _wait_for_another(self) -> None:
        await self._another.wait()

    async def _watch_health(self) -> None:
        gone = 0
        while gone < GONE_TIMES:
            await asyncio.sleep(HEALTH_SECONDS)
            health = await self._engine.health()
            self.healthy = health is Health.OK
            gone = gone + 1 if health is Health.GONE else 0


async def ask_facts(
    engine: Engine, block_sizes: Sequence[int], *, kind: str = "vllm", page_size: int | None = None
) -> tuple[EngineFacts, EngineMetrics]:
    """Ask the engine who it is. Raises EngineError, also when the block size can't be known."""
    model, version, metrics = await asyncio.gather(engine.model(), engine.version(), engine.metrics())
    block_size = metrics.block_size
    if block_size is None and len(block_sizes) == 1:
        block_size = block_sizes[0]
    if block_size is None:
        raise EngineError(
            200,
            f"{engine.url}/metrics does not tell the block size (vLLM: vllm:cache_config_info, TensorRT-LLM: "
            "kvCacheStats.tokensPerBlock): start the engine with metrics, or set KVROUTE_BLOCK_SIZES to its one "
            "block size",
        )
    facts = EngineFacts(
        model.name, model.loras, version, block_size, model.max_model_len, metrics.num_blocks, page_size, kind,
        metrics.started_at,
    )
    return facts, metrics
