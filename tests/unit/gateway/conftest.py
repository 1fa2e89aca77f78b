"""The gateway on a service in memory and a real port; tests play the rest of the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from schemas.control import Control
from schemas.request import Request
from schemas.work import Response, ResponseError
from schemas.worker import Heartbeat, Worker, WorkerState
from services.gateway.app import GatewayApp, build
from services.runtime.settings import Settings
from services.runtime.topics import CONTROL, HEARTBEATS, REQUESTS, WORKERS
from tests.fakes import FakeClock, Harness

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
PATH = "/v1/chat/completions"


class Gateway:
    """What tests say to the gateway from both of its sides."""

    def __init__(self, harness: Harness, app: GatewayApp, client: aiohttp.ClientSession) -> None:
        self.harness = harness
        self.app = app
        self.client = client

    @property
    def clock(self) -> FakeClock:
        return self.harness.clock

    @property
    def published(self) -> list[Request]:
        return self.harness.sender.messages(REQUESTS.name, Request)

    @property
    def orders(self) -> list[Control]:
        return self.harness.sender.messages(CONTROL.name, Control)

    async def until(self, true: Callable[[], object]) -> None:
        """Let the loop turn until something holds; a test's timeout ends what never does."""
        while not true():  # noqa: ASYNC110 - what is waited for is all over the gateway
            await asyncio.sleep(0.001)

    async def asked(self, count: int = 1) -> Request:
        """The newest request, once so many were published."""
        await self.until(lambda: len(self.published) >= count)
        return self.published[-1]

    def post(self, path: str = PATH, body: Any = None, **options: Any) -> asyncio.Task[aiohttp.ClientResponse]:
        """POST, not waited for. The client's own session is used."""
        given = {"json": CHAT if body is None else body} if "data" not in options else {}
        return asyncio.create_task(self.client.post(path, **given, **options))  # type: ignore[arg-type]

    async def answer(self, request: Request, chunk: str = '{"id":"x"}', **piece: Any) -> None:
        """A piece of the answer, as an agent sends it."""
        given = {
            "request_id": request.request_id, "tenant": request.tenant, "attempt": 1, "worker_id": "w1", "epoch": 5,
            "index": 0, "chunk": chunk, "final": True,
        } | piece  # fmt: skip
        await self.harness.push(self.app.reply_to, Response(**given))

    async def refuse(self, request: Request, status: int = 503, code: str = "no_worker", **piece: Any) -> None:
        """A stage ends the request."""
        error = ResponseError(status=status, type="server_error", message="because", code=code)
        await self.answer(request, "", **({"attempt": 0, "worker_id": None, "epoch": None, "error": error} | piece))

    async def worker(self, worker_id: str = "w1", epoch: int = 5, **fields: Any) -> None:
        given = {"model": "m", "block_size": 16, "at_ms": 1_700_000_000_000, "state": WorkerState.LIVE} | fields
        await self.harness.push(WORKERS, Worker(worker_id=worker_id, epoch=epoch, **given))

    async def beat(self, worker_id: str = "w1", epoch: int = 5, **record: Any) -> None:
        await self.harness.push(HEARTBEATS, Heartbeat(worker_id=worker_id, epoch=epoch, at_ms=0), **record)

    async def check(self) -> None:
        await self.harness.tick("check_answers")


MakeGateway = Callable[..., Awaitable[Gateway]]


@pytest.fixture
async def make_gateway(tmp_path: Path) -> AsyncIterator[MakeGateway]:
    made: list[Gateway] = []

    async def make(**settings: Any) -> Gateway:
        given = {"data_dir": tmp_path, "gateway_port": 0, "drain_seconds": 0.2} | settings
        harness = Harness("gateway", Settings(**given))
        app = build(harness.settings, harness)  # type: ignore[arg-type] # the harness is a service
        await harness.start()
        client = aiohttp.ClientSession(f"http://127.0.0.1:{app.server.port}")
        made.append(Gateway(harness, app, client))
        return made[-1]

    yield make
    for gateway in made:
        await gateway.client.close()
        await gateway.harness.stop()


@pytest.fixture
async def gateway(make_gateway: MakeGateway) -> Gateway:
    return await make_gateway()


async def error_of(response: aiohttp.ClientResponse) -> tuple[int, str]:
    """Status and code of an OpenAI error, its form checked."""
    assert response.content_type == "application/json"
    body = await response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert body["error"]["type"]
    return response.status, body["error"]["code"]
