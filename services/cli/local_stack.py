"""Everything on one machine: a broker as a child, simulated engines with their agents, and all stages in one process.

What ``kvroute up`` runs, and what the demo asks its questions to. The one place where the stages are put together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from services.audit import app as audit
from services.audit.migrate import upgrade
from services.engine_sim.config import SimConfig
from services.engine_sim.server import SimEngine
from services.gateway import app as gateway
from services.layout import app as layout
from services.media import app as media
from services.router import app as router
from services.runtime.admin import create_topics
from services.runtime.embedded import EmbeddedBroker, KafkaHomeBroker
from services.runtime.errors import ConfigError, KvrouteError
from services.runtime.listening import Listening, gateway_place
from services.runtime.projection_reader import ProjectionReader
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.worker import app as worker

STAGES: dict[str, Callable[[Settings, Service], object]] = {
    "audit": audit.build,
    "router": router.build,
    "layout": layout.build,
    "media": media.build,
    "gateway": gateway.build,
}
"""In the order they start: who reads first, starts first."""

READY_SECONDS = 60.0
_ANOTHER_KAFKA_PORT = (
    'choose another with --kafka-port (`make up ARGS="--kafka-port 9192"`); is another `make up` running?'
)


@dataclass(frozen=True, slots=True)
class StackPlan:
    """What to start besides the stages. ``engines`` 0: agents of real engines are run apart."""

    model: Path | None = None
    served_name: str | None = None
    engines: int = 3
    speedup: float = 1.0
    block_size: int = 16
    num_blocks: int = 4096
    max_num_seqs: int = 256
    kafka_port: int | None = None
    """Port of the broker on 127.0.0.1; None: any that is free."""


class LocalStack:
    """Starts all parts, tells the way they go, and leaves nothing behind.

    After ``start``: ``settings`` are the effective ones (with the broker's address), ``gateway_url`` answers requests,
    ``engines`` are the simulated ones by worker id.
    """

    def __init__(self, settings: Settings, plan: StackPlan, say: Callable[[str], None] = lambda _: None) -> None:
        self.settings = settings
        self.plan = plan
        self.gateway_url = ""
        self.engines: dict[str, SimEngine] = {}
        self.services: list[Service] = []
        self._say = say
        self._parts = contextlib.AsyncExitStack()

    async def __aenter__(self) -> LocalStack:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()

    async def start(self) -> None:
        """Start everything and wait until it is ready. Raises KvrouteError saying which part is not, and why."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop in the reverse order: requests in flight end first, the broker goes last."""
        await self._parts.aclose()

    async def wait_failed(self) -> None:
        """Return only when a part gave up. Raises its error."""
        waits = [asyncio.ensure_future(service.wait_failed()) for service in self.services]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        for service in self.services:
            service.raise_failure()

    def places(self) -> list[Listening]:
        """The ports that were chosen by somebody: asked for before the broker starts, not after half a minute."""
        places = [gateway_place(self.settings.gateway_host, self.settings.gateway_port)]
        if self.plan.kafka_port is not None:
            places.insert(0, Listening("the broker", "127.0.0.1", self.plan.kafka_port, _ANOTHER_KAFKA_PORT))
        return places

    async def _start(self) -> None:
        for place in self.places():
            place.check()
        self.settings.data_dir.mkdir(parents=True, exist_ok=True)
        await self._start_broker()
        self._say("starting audit store")
        await upgrade(self.settings)
        await self._start_engines()
        reader = ProjectionReader(self.settings)
        agents = [self._agent(worker_id, engine, reader) for worker_id, engine in self.engines.items()]
        stages = [self._stage(name, reader) for name in STAGES]
        self._say("starting stages: " + ", ".join(STAGES))
        for service in [*stages, *agents]:
            # Before its start: one that is broken off has clients that the broker must not be taken from.
            self._parts.push_async_callback(service.stop)
            await service.start()
            self.services.append(service)
        self.gateway_url = f"http://{self.settings.gateway_host}:{self.settings.gateway_port}"
        await self._wait_ready()

    async def _start_broker(self) -> None:
        home = self.settings.kafka_home
        self._say(f"starting broker: Apache Kafka in {home}" if home else "starting broker: embedded")
        port = self.plan.kafka_port
        broker = KafkaHomeBroker(home, port=port) if home else EmbeddedBroker(port)
        bootstrap = await broker.start()
        self._parts.push_async_callback(broker.stop)
        profile = "kafka" if home else "embedded"
        self.settings = self.settings.model_copy(update={"kafka_bootstrap": bootstrap, "kafka_profile": profile})
        await create_topics(self.settings)

    async def _start_engines(self) -> None:
        plan = self.plan
        if not plan.engines:
            return
        if plan.model is None:
            raise ConfigError("simulated engines need a model folder (config.json, tokenizer.json): give --model")
        self._say(f"starting engines: {plan.engines} simulated, {plan.model.name}")
        for number in range(1, plan.engines + 1):
            engine = SimEngine(
                SimConfig(
                    model=plan.model,
                    served_name=plan.served_name,
                    block_size=plan.block_size,
                    num_blocks=plan.num_blocks,
                    speedup=plan.speedup,
                    seed=number,
                    max_num_seqs=plan.max_num_seqs,
                )
            )
            await engine.start()
            self._parts.push_async_callback(engine.stop)
            self.engines[f"w{number}"] = engine
        name = plan.served_name or plan.model.name
        models = {name: str(plan.model), **self.settings.models}
        self.settings = self.settings.model_copy(update={"models": models})

    def _stage(self, name: str, reader: ProjectionReader) -> Service:
        service = Service(name, self.settings, projections=reader, health=False)
        STAGES[name](self.settings, service)
        return service

    def _agent(self, worker_id: str, engine: SimEngine, reader: ProjectionReader) -> Service:
        settings = self.settings.model_copy(
            update={"worker_id": worker_id, "worker_engine_url": engine.http_url, "worker_model_dir": self.plan.model}
        )
        service = Service(f"agent-{worker_id}", settings, projections=reader, health=False)
        worker.build(settings, service)
        return service

    async def _wait_ready(self) -> None:
        self._say("waiting until every part is ready")
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while waiting := {service.name: why for service in self.services if (why := service.unready())}:
            for service in self.services:
                service.raise_failure()
            if asyncio.get_running_loop().time() > deadline:
                raise KvrouteError(
                    f"not ready after {READY_SECONDS:.0f} s: "
                    + "; ".join(f"{name}: {', '.join(why)}" for name, why in waiting.items())
                )
            await asyncio.sleep(0.1)
