"""The HTTP client against a real server on 127.0.0.1: whole answers, streams, errors in all their shapes."""

from __future__ import annotations

import pytest
from aiohttp import web

from services.cli.exits import Away
from services.cli.gateway_client import GatewayRefused, HttpGateway

CHUNKS = [
    b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n',
    b'data: {"choices": [{"delta": {"content": "A "}}]}\n\ndata: {"choices": [{"delta": {"content": "lamp"}}]}\n\n',
    b': ping\n\ndata: {"choices": [], "usage": {"prompt_tokens": 7}}\n\n',
    b"data: [DONE]\n\n",
]


async def chat(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    model = body["model"]
    if model == "refused":
        return web.json_response({"error": {"message": "no such model", "code": "model_not_found"}}, status=404)
    if model == "proxy":
        return web.Response(text="<html>bad gateway", status=502)
    if model == "html":
        return web.Response(text="<html>", content_type="application/json")
    if not body.get("stream"):
        headers = {"x-kvroute-worker": "w1", "x-request-id": request.headers["X-Request-Id"]}
        usage = {"prompt_tokens": 7}
        return web.json_response({"choices": [{"message": {"content": "A lamp"}}], "usage": usage}, headers=headers)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "x-kvroute-worker": "w2"})
    await response.prepare(request)
    for chunk in CHUNKS[:2] if model == "breaks" else CHUNKS:
        await response.write(chunk)
    if model == "breaks":
        await response.write(b'data: {"error": {"message": "worker gone", "code": "worker_lost"}}\n\n')
    return response


async def models(request: web.Request) -> web.Response:
    assert request.headers.get("Authorization") == "Bearer key"
    return web.json_response({"data": [{"id": "a"}, {"id": "b"}]})


async def done(_: web.Request) -> web.Response:
    return web.Response(status=204)


@pytest.fixture
async def url():
    application = web.Application()
    application.add_routes(
        [web.post("/v1/chat/completions", chat), web.get("/v1/models", models), web.post("/v1/route/x/done", done)]
    )
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def gateway(url):
    async with HttpGateway(url, "key") as client:
        yield client


async def ask(gateway, model, stream=False):
    answer = await gateway.chat({"model": model, "stream": stream}, {"X-Request-Id": "r1"})
    return "".join([piece async for piece in answer.pieces]), answer


async def test_models(gateway):
    assert await gateway.models() == ["a", "b"]


async def test_a_whole_answer(gateway):
    text, answer = await ask(gateway, "m")
    assert (text, answer.worker, answer.request_id) == ("A lamp", "w1", "r1")
    assert answer.usage == {"prompt_tokens": 7}


async def test_a_stream(gateway):
    text, answer = await ask(gateway, "m", stream=True)
    assert (text, answer.worker) == ("A lamp", "w2")
    assert answer.usage == {"prompt_tokens": 7}


async def test_a_stream_that_ends_with_an_error(gateway):
    with pytest.raises(GatewayRefused, match="worker gone"):
        await ask(gateway, "breaks", stream=True)


@pytest.mark.parametrize(
    ("model", "status", "said"),
    [
        ("refused", 404, "no such model (model_not_found)"),
        ("proxy", 502, "bad gateway"),
        ("html", 502, "is this a kvroute"),
    ],
)
async def test_refusals(gateway, model, status, said):
    with pytest.raises(GatewayRefused) as raised:
        await ask(gateway, model)
    assert raised.value.status == status
    assert said in str(raised.value)


async def test_an_empty_answer_is_an_empty_object(gateway):
    assert await gateway.post("/v1/route/x/done", {}, {}) == {}


async def test_the_openai_base_url_is_taken_too(url):
    async with HttpGateway(f"{url}/v1/", "key") as client:
        assert await client.models() == ["a", "b"]


async def test_nobody_there():
    async with HttpGateway("http://127.0.0.1:1", None) as client:
        with pytest.raises(Away, match="kvroute up"):
            await client.models()
