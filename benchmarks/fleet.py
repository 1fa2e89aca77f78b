"""Child processes of the pipeline benchmark: ``python -m benchmarks.fleet engines|agents ...``.

The simulated engines share one process, and so do their agents: on a machine with few cores the stages are what is
measured, not how many idle processes it can hold.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from pathlib import Path

from services.engine_sim.config import SimConfig
from services.engine_sim.server import SimEngine
from services.runtime.configuration import load_settings
from services.runtime.event_loop import run_service, settle_memory
from services.runtime.projection_reader import ProjectionReader
from services.runtime.service import Service
from services.worker.app import build as build_agent

BLOCK_SIZE = 16
NUM_BLOCKS = 65_536


async def engines(model: Path, count: int) -> None:
    """Simulated engines that take no time, until killed. Says their URLs when they are up."""
    running = [
        SimEngine(
            SimConfig(model=model, block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, speedup=math.inf, seed=number)
        )
        for number in range(count)
    ]
    for engine in running:
        await engine.start()
    settle_memory()
    print("engines " + json.dumps([engine.http_url for engine in running]), flush=True)
    await asyncio.Event().wait()


async def agents(model: Path, urls: list[str]) -> None:
    """An agent beside each engine, until killed. Says so when all are ready."""
    settings = load_settings(os.environ).settings
    reader = ProjectionReader(settings)
    running: list[Service] = []
    for number, url in enumerate(urls):
        own = settings.model_copy(
            update={"worker_id": f"w{number + 1}", "worker_engine_url": url, "worker_model_dir": model}
        )
        service = Service(f"agent-w{number + 1}", own, projections=reader, health=False)
        build_agent(own, service)
        await service.start()
        running.append(service)
    while any(service.unready() for service in running):  # noqa: ASYNC110 - readiness is asked, nobody tells it
        await asyncio.sleep(0.05)
    settle_memory()
    print("agents ready", flush=True)
    await asyncio.gather(*(service.wait_failed() for service in running))


if __name__ == "__main__":
    role, folder, *rest = sys.argv[1:]
    run_service(engines(Path(folder), int(rest[0])) if role == "engines" else agents(Path(folder), rest))
