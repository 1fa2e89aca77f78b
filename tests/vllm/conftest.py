"""Two real vLLM workers behind a whole kvroute. Collected only where VLLM_HOME names a folder with vLLM in it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from services.cli.local_stack import LocalStack, StackPlan
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.worker import app as worker
from services.worker.agent import Agent
from tests.vllm.server import Vllm, free_port

HOME = os.environ.get("VLLM_HOME")
collect_ignore_glob = [] if HOME else ["test_*"]
MODEL = Path(__file__).parents[1] / "models" / os.environ.get("VLLM_MODEL", "qwen2.5-vl")
SETTLE_SECONDS = 1.0
"""Until an answer's KV events are in the router's index; prefixes in flight are another matter."""

KEYS = "key-a=tenant-a,key-b=tenant-b"


@dataclass(frozen=True)
class Told:
    """What became of a request: the engine's own numbers beside the decision's."""

    worker: str
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int
    exact: bool
    reason: str | None


@dataclass
class Fleet:
    """kvroute with two vLLM workers."""

    stack: LocalStack
    engines: dict[str, Vllm]
    agents: dict[str, Agent]
    session: aiohttp.ClientSession
    database: Path
    pictures: dict[str, bytes]
    pictures_url: str

    async def ask(self, content: Any, *, key: str | None = None, salt: str | None = None, identity: str | None = None,
                  stream: bool = False) -> Told:  # fmt: skip
        """Ask through the gateway and wait for what the audit store knows of it."""
        request_id = f"t-{uuid.uuid4().hex[:12]}"
        given = {"X-Request-Id": request_id, "X-Kvroute-Cache-Salt": salt, "X-Kvroute-Identity": identity,
                 "Authorization": f"Bearer {key or 'key-a'}"}  # fmt: skip
        body = {"model": MODEL.name, "messages": [{"role": "user", "content": content}], "max_tokens": 2,
                "temperature": 0, "stream": stream}  # fmt: skip
        headers = {name: value for name, value in given.items() if value}
        async with self.session.post(
            f"{self.stack.gateway_url}/v1/chat/completions", json=body, headers=headers
        ) as answer:
            text = await answer.text()
            assert answer.status == 200, text
        told = await self._told(request_id)
        await asyncio.sleep(SETTLE_SECONDS)
        return told

    async def _told(self, request_id: str) -> Told:
        async with asyncio.timeout(60):
            while True:
                if (row := self._row(request_id)) is not None:
                    return row
                await asyncio.sleep(0.1)

    def _row(self, request_id: str) -> Told | None:
        with sqlite3.connect(self.database) as connection:
            connection.row_factory = sqlite3.Row
            row = connection.execute(
                "SELECT * FROM v_decision_explained WHERE request_id = ? AND cached_tokens IS NOT NULL", (request_id,)
            ).fetchone()
        if row is None:
            return None
        return Told(
            row["worker_id"], row["prompt_tokens"], row["cached_tokens"], row["predicted_tokens"],
            row["exact_tokens"] == row["prompt_tokens"], row["reason"],
        )  # fmt: skip


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    assert HOME is not None
    folder = tmp_path_factory.mktemp("vllm")
    async with AsyncExitStack() as parts:
        engines = {name: Vllm(Path(HOME), MODEL, folder) for name in ("v1", "v2")}
        for engine in engines.values():
            parts.push_async_callback(engine.kill)
        await asyncio.gather(*(engine.start() for engine in engines.values()))
        pictures: dict[str, bytes] = {}
        pictures_url = await _serve(pictures, parts)
        database = folder / "audit.sqlite3"
        settings = Settings.model_validate(
            {"data_dir": folder / "data", "database_url": f"sqlite+aiosqlite:///{database}",
             "gateway_port": free_port(), "models": {MODEL.name: str(MODEL)}, "media_allow_private": True,
             "gateway_api_keys": KEYS}
        )
        stack = await parts.enter_async_context(LocalStack(settings, StackPlan(engines=0)))
        agents = {}
        for name, engine in engines.items():
            own = stack.settings.model_copy(
                update={"worker_id": name, "worker_engine_url": engine.url, "worker_model_dir": MODEL}
            )
            service = Service(f"agent-{name}", own, health=False)
            agents[name] = worker.build(own, service)
            await service.start()
            parts.push_async_callback(service.stop)
        async with asyncio.timeout(300):
            while not all(agent.registered for agent in agents.values()):  # noqa: ASYNC110 - somebody else's state
                await asyncio.sleep(0.2)
        timeout = aiohttp.ClientTimeout(total=120)
        session = await parts.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        await asyncio.sleep(3)
        yield Fleet(stack, engines, agents, session, database, pictures, pictures_url)


async def _serve(pictures: dict[str, bytes], parts: AsyncExitStack) -> str:
    """A web server of pictures whose content a test may change."""

    async def picture(request: web.Request) -> web.Response:
        return web.Response(body=pictures[request.match_info["name"]], content_type="image/png")

    server = web.Application()
    server.router.add_get("/{name}", picture)
    runner = web.AppRunner(server)
    await runner.setup()
    parts.push_async_callback(runner.cleanup)
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return f"http://127.0.0.1:{port}"
