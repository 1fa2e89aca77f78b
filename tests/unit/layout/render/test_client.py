"""Asking for a rendering: whatever an engine does, there is an answer or a reason, in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from services.kv.reason import Reason
from services.layout.render import client as client_module
from services.layout.render.client import RENDER_PATH, RenderClient, Unreachable
from services.layout.render.rendered import NotRendered

Serve = Callable[[Callable[[web.Request], object]], object]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts an engine that answers like this; its URL."""
    servers: list[TestServer] = []

    async def start(handler: Callable[[web.Request], object]) -> str:
        application = web.Application()
        application.router.add_post(RENDER_PATH, handler)  # type: ignore[arg-type]
        servers.append(TestServer(application))
        await servers[-1].start_server()
        return str(servers[-1].make_url("/"))

    yield start
    for server in servers:
        await server.close()


@pytest.fixture
async def client() -> AsyncIterator[RenderClient]:
    made = RenderClient(seconds=0.5, concurrency=2)
    yield made
    await made.close()


async def test_an_answer_is_read(serve: Serve, client: RenderClient) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"token_ids": [1, len(await request.json())], "features": None})

    url = await serve(handler)  # type: ignore[misc]
    assert (await client.render(url, {"a": 1, "b": 2})).token_ids == [1, 2]


@pytest.mark.parametrize(
    ("status", "reason", "elsewhere"),
    [
        (404, Reason.CONTRACT_MISSING, False), (501, Reason.CONTRACT_MISSING, False),
        (400, Reason.TEMPLATE_MISMATCH, False), (302, Reason.TEMPLATE_MISMATCH, False),
        (500, Reason.CONTRACT_MISSING, True), (429, Reason.CONTRACT_MISSING, True),
    ],
)  # fmt: skip
async def test_a_refusal_has_a_reason(
    serve: Serve, client: RenderClient, status: int, reason: Reason, elsewhere: bool
) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, text="a prompt, perhaps")

    with pytest.raises(NotRendered) as caught:
        await client.render(await serve(handler), {})  # type: ignore[misc]
    assert (caught.value.reason, isinstance(caught.value, Unreachable)) == (reason, elsewhere)
    assert "perhaps" not in str(caught.value)


async def test_nobody_listens(client: RenderClient) -> None:
    with pytest.raises(Unreachable):
        await client.render("http://127.0.0.1:9", {})


async def test_rubbish(serve: Serve, client: RenderClient) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text="[")

    with pytest.raises(NotRendered, match="not JSON"):
        await client.render(await serve(handler), {})  # type: ignore[misc]


async def test_an_endless_answer(serve: Serve, client: RenderClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MOST_BYTES", 1000)

    async def handler(request: web.Request) -> web.Response:
        return web.Response(text="1" * 5000)

    with pytest.raises(NotRendered) as caught:
        await client.render(await serve(handler), {})  # type: ignore[misc]
    assert caught.value.reason is Reason.BUDGET_EXCEEDED


async def test_few_at_once_and_waiting_counts(serve: Serve, client: RenderClient) -> None:
    running = most = 0
    gone = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gone.wait()
        running -= 1
        return web.json_response({"token_ids": [1]})

    url = await serve(handler)  # type: ignore[misc]
    asked = [asyncio.ensure_future(client.render(url, {})) for _ in range(5)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    gone.set()
    assert most == 2
    assert {error.reason for error in found if isinstance(error, NotRendered)} == {Reason.BUDGET_EXCEEDED}
    assert len(found) == 5
