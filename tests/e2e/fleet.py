"""A fleet of real processes for the end-to-end tests: one process a stage, an engine, an agent; killed at will."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from services.cli.free_port import free_port
from services.runtime.settings import Settings

MODEL = Path(__file__).resolve().parents[1] / "models" / "qwen2.5-vl"
READY_SECONDS = 120.0


class Fleet:
    """Starts ``kvroute run …`` and ``kvroute sim`` processes that share a broker, a database and a data folder."""

    def __init__(self, settings: Settings, folder: Path, *, prefix: str = "") -> None:
        self.folder = folder
        self.gateway_port = free_port()
        self.engine_urls: dict[str, str] = {}
        self._prefix = prefix or settings.topic_prefix
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._health: dict[str, int] = {}
        self._environment = {
            "KVROUTE_KAFKA_BOOTSTRAP": settings.kafka_bootstrap,
            "KVROUTE_KAFKA_PROFILE": settings.kafka_profile,
            "KVROUTE_TOPIC_PREFIX": self._prefix,
            "KVROUTE_DATABASE_URL": settings.database_url.get_secret_value(),
            "KVROUTE_DATA_DIR": str(folder / "data"),
            "KVROUTE_MODELS": f"{MODEL.name}={MODEL}",
            "KVROUTE_GATEWAY_PORT": str(self.gateway_port),
            "KVROUTE_MEDIA_ALLOW_PRIVATE": "true",
            "KVROUTE_LOG_LEVEL": "info",
            "KVROUTE_LOG_FORMAT": "json",
        }

    @property
    def gateway_url(self) -> str:
        """Where requests go."""
        return f"http://127.0.0.1:{self.gateway_port}"

    async def stage(self, name: str, replica: int = 1, **environment: str) -> None:
        """Start a stage's replica; ``ready`` waits for it."""
        await self._run(f"{name}-{replica}", ["run", name], {"KVROUTE_INSTANCE": f"{name}-{replica}", **environment})

    def set(self, **environment: str) -> None:
        """Settings of every process started from now on."""
        self._environment |= environment

    async def worker(
        self, worker_id: str, *engine: str, num_blocks: int = 8192, speedup: float = 20.0
    ) -> None:
        """Start a simulated engine, with more arguments if need be, and its agent."""
        http, zmq = free_port(), free_port()
        self.engine_urls[worker_id] = f"http://127.0.0.1:{http}"
        arguments = ["sim", "--model", str(MODEL), "--port", str(http), "--events", f"tcp://*:{zmq}"]
        arguments += ["--num-blocks", str(num_blocks), "--speedup", str(speedup), *engine]
        await self._run(f"engine-{worker_id}", arguments, {}, health=False)
        await self.agent(worker_id)

    async def agent(self, worker_id: str) -> None:
        """Start the agent of a running engine."""
        own = {
            "KVROUTE_WORKER_ID": worker_id,
            "KVROUTE_WORKER_ENGINE_URL": self.engine_urls[worker_id],
            "KVROUTE_INSTANCE": f"agent-{worker_id}",
        }
        await self._run(f"agent-{worker_id}", ["run", "agent"], own)

    async def ready(self, *names: str) -> None:
        """Wait until the named processes (all when none is named) say they are ready."""
        await asyncio.gather(*(self._ready(name) for name in (names or tuple(self._health))))

    def kill(self, name: str) -> None:
        """SIGKILL, as a machine that burns down."""
        self._processes.pop(name).send_signal(signal.SIGKILL)
        self._health.pop(name, None)

    async def end(self, name: str) -> None:
        """SIGTERM, as a deployment that replaces it; returns when it is gone."""
        process = self._processes.pop(name)
        self._health.pop(name, None)
        process.terminate()
        await asyncio.wait_for(process.wait(), 60)

    def names(self) -> list[str]:
        """The running stages and agents, those that have metrics."""
        return list(self._health)

    def running(self, name: str) -> bool:
        """Whether the process is alive."""
        return name in self._processes and self._processes[name].returncode is None

    def resident_bytes(self, name: str) -> int:
        """Resident memory of a process (Linux)."""
        pages = int(Path(f"/proc/{self._processes[name].pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def metrics(self, name: str) -> str:
        """A stage's /metrics."""
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{self._health[name]}/metrics") as answer,
        ):
            return await answer.text()

    def log_of(self, name: str) -> str:
        """What a process wrote."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    async def stop(self) -> None:
        """SIGTERM to all, then SIGKILL to those that do not go."""
        for process in self._processes.values():
            if process.returncode is None:
                process.terminate()
        for process in self._processes.values():
            try:
                await asyncio.wait_for(process.wait(), 15)
            except TimeoutError:
                process.kill()
                await process.wait()

    async def _run(self, name: str, arguments: list[str], own: Mapping[str, str], *, health: bool = True) -> None:
        environment = {**os.environ, **self._environment, **own}
        if health:
            self._health[name] = free_port()
            environment["KVROUTE_HEALTH_PORT"] = str(self._health[name])
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.cli.main",
                *arguments,
                env=environment,
                stdout=log,
                stderr=log,
                stdin=asyncio.subprocess.DEVNULL,
            )

    async def _ready(self, name: str) -> None:
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        async with aiohttp.ClientSession() as http:
            while True:
                try:
                    async with http.get(f"http://127.0.0.1:{self._health[name]}/readyz") as answer:
                        text = await answer.text()
                        if answer.status == 200:
                            return
                except aiohttp.ClientError as error:
                    text = str(error)
                if not self.running(name) or asyncio.get_running_loop().time() > deadline:
                    raise AssertionError(f"{name} is not ready: {text}\n{self.log_of(name)[-3000:]}")
                await asyncio.sleep(0.1)
