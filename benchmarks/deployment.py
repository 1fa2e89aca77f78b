"""The pipeline as it is deployed: a broker, every stage a process of its own, simulated engines, their agents."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

import aiohttp

from benchmarks.processes import Child, cpu_seconds
from services.runtime.admin import create_topics
from services.runtime.broker_process import free_ports
from services.runtime.embedded import EmbeddedBroker, KafkaHomeBroker
from services.runtime.settings import Settings

STAGES = ("audit", "router", "layout", "media", "gateway")
ENGINES = 4
MODEL = Path(__file__).resolve().parents[1] / "tests" / "models" / "qwen2.5-vl"


class Deployment:
    """Starts it all and ends it all. ``settings`` are those of its clients."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.gateway_url = ""
        self.engine_urls: list[str] = []
        self.broker_name = ""
        self._children: dict[str, Child] = {}
        self._broker_pid = 0
        self._parts = AsyncExitStack()

    @property
    def model(self) -> str:
        """The name the engines serve."""
        return MODEL.name

    async def __aenter__(self) -> Deployment:
        """Start; every part is ready afterwards."""
        try:
            await self._start()
        except BaseException:
            await self._parts.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop, the broker last."""
        await self._parts.aclose()

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far: by stage, of the engines, of the agents, and of the broker."""
        used = {name: child.cpu_seconds() for name, child in self._children.items() if name != "database"}
        return used | {"broker": cpu_seconds(self._broker_pid)}

    async def _start(self) -> None:
        folder = Path(self._parts.enter_context(tempfile.TemporaryDirectory(prefix="kvroute-bench-")))
        profile = await self._start_broker()
        ports = dict(zip((*STAGES, "http"), free_ports(len(STAGES) + 1), strict=True))
        environment = {
            "KVROUTE_KAFKA_BOOTSTRAP": self.settings.kafka_bootstrap,
            "KVROUTE_KAFKA_PROFILE": profile,
            "KVROUTE_DATA_DIR": str(folder),
            "KVROUTE_DATABASE_URL": f"sqlite+aiosqlite:///{folder}/audit.sqlite3",
            "KVROUTE_MODELS": f"{MODEL.name}={MODEL}",
            "KVROUTE_GATEWAY_PORT": str(ports["http"]),
            "KVROUTE_LOG_LEVEL": "warning",
        }
        await create_topics(self.settings)
        kvroute = str(Path(sys.executable).with_name("kvroute"))
        await self._run("database", [kvroute, "db", "upgrade", "--table"], environment, until="revision")
        await self._run(
            "engines", [sys.executable, "-m", "benchmarks.fleet", "engines", str(MODEL), str(ENGINES)], environment,
            until="engines [",
        )  # fmt: skip
        (found,) = re.findall(r"^engines (\[.*\])$", self._children["engines"].output, flags=re.MULTILINE)
        self.engine_urls = json.loads(found)
        for stage in STAGES:
            health = {} if stage == "gateway" else {"KVROUTE_HEALTH_PORT": str(ports[stage])}
            await self._run(stage, [kvroute, "run", stage], environment | health)
        await self._run(
            "agents", [sys.executable, "-m", "benchmarks.fleet", "agents", str(MODEL), *self.engine_urls], environment,
            until="agents ready",
        )  # fmt: skip
        self.gateway_url = f"http://127.0.0.1:{ports['http']}"
        for stage in STAGES:
            await self._ready(stage, ports["http" if stage == "gateway" else stage])

    async def _start_broker(self) -> Literal["kafka", "embedded"]:
        home = os.environ.get("KAFKA_HOME")
        broker = KafkaHomeBroker(Path(home)) if home else EmbeddedBroker()
        bootstrap = await broker.start()
        self._parts.push_async_callback(broker.stop)
        self._broker_pid = broker.pid or 0
        self.broker_name = "Apache Kafka" if home else "Tansu (embedded)"
        self.settings = Settings(kafka_bootstrap=bootstrap, kafka_profile=broker.profile)
        return broker.profile

    async def _run(self, name: str, command: list[str], environment: dict[str, str], until: str = "") -> None:
        child = await Child.start(name, command, environment)
        self._parts.push_async_callback(child.stop)
        self._children[name] = child
        if until:
            await child.line_with(until)

    async def _ready(self, stage: str, port: int) -> None:
        async with aiohttp.ClientSession() as session:
            for _ in range(600):
                try:
                    async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)
        raise RuntimeError(f"{stage} is not ready; its last lines:\n{self._children[stage].output[-3000:]}")
