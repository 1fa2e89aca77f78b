"""Engines on free ports that share one vocabulary, and a client for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from services.engine_sim.config import SimConfig
from services.engine_sim.server import SimEngine
from services.layout.card import ModelCard
from services.layout.layouter import Layouter

MODEL = Path(__file__).parents[2] / "models" / "qwen2.5-vl"


@pytest.fixture(scope="package")
def layouter() -> Layouter:
    return Layouter(ModelCard.load(MODEL, "m"), cache_tokens=100_000)


@dataclass
class Answer:
    status: int
    body: Any

    @property
    def message(self) -> str:
        return str(self.body["error"]["message"])


@dataclass
class Client:
    """Talks to one engine."""

    engine: SimEngine
    session: aiohttp.ClientSession

    async def post(self, path: str, body: Any, **headers: str) -> Answer:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(self.engine.http_url + path, json=body, headers=names) as response:
            return Answer(response.status, await response.json(content_type=None))

    async def get(self, path: str) -> Answer:
        async with self.session.get(self.engine.http_url + path) as response:
            text = await response.text()
            return Answer(response.status, await response.json() if "json" in response.content_type else text)

    async def chat(self, content: Any = "hello", *, max_tokens: int | None = 1, **more: Any) -> Answer:
        headers = {name: more.pop(name) for name in list(more) if name.startswith("X_")}
        body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, **more}
        return await self.post("/v1/chat/completions", body, **headers)


StartEngine = Callable[..., Awaitable[Client]]


@pytest.fixture
async def start(layouter: Layouter) -> AsyncIterator[StartEngine]:
    """Starts engines with given options; all are stopped at the end."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def start_engine(**options: Any) -> Client:
            config = SimConfig(MODEL, **{"served_name": "m", "speedup": float("inf"), **options})
            return Client(await stack.enter_async_context(SimEngine(config, layouter=layouter)), session)

        yield start_engine


@pytest.fixture
async def client(start: StartEngine) -> Client:
    return await start()
