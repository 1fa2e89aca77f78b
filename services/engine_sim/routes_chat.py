"""``POST /v1/chat/completions``: whole answers and server-sent events."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from aiohttp import web

from services.engine_sim import answer
from services.engine_sim.asked import Asked, parse_asked
from services.engine_sim.backend import Backend, Submitted
from services.engine_sim.errors import bad_request
from services.engine_sim.expand import Prompt
from services.engine_sim.scheduler import Output
from services.engine_sim.text import Detokenizer

BACKEND = web.AppKey("backend", Backend)


def add_chat_routes(app: web.Application) -> None:
    """Register the routes."""
    app.router.add_post("/v1/chat/completions", chat_completions)


def json_response(value: Any, status: int = 200) -> web.Response:
    """A JSON body."""
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


async def read_body(request: web.Request) -> tuple[dict[str, Any], int]:
    """The JSON object of a request and its size in bytes. Raises ApiError."""
    raw = await request.read()
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"JSON decode error: {error}") from None
    if not isinstance(body, dict):
        raise bad_request(f"the body is {type(body).__name__}, expected an object")
    return body, len(raw)


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Expand, queue, answer."""
    backend = request.app[BACKEND]
    body, size = await read_body(request)
    lora = backend.adapter(body)
    asked = parse_asked(body, request.headers)
    prompt = await backend.expander.expand_chat(body, size)
    with backend.submit(prompt, asked, lora) as submitted:
        created = backend.clock.now_ms() // 1000
        head = answer.Head(f"chatcmpl-{submitted.request.request_id}", lora or backend.config.name, created)
        if asked.stream:
            return await _stream(request, backend, head, prompt, asked, submitted)
        await submitted.outputs.get()
        text = backend.tokenizer.decode(submitted.request.output_ids)
        details = details_of(backend, submitted, prompt)
        return json_response(
            answer.completion(head, submitted.request, text, details, token_ids=asked.return_token_ids)
        )


def details_of(backend: Backend, submitted: Submitted, prompt: Prompt) -> answer.Details | None:
    """Prompt details, where the engine was started to give them."""
    if not backend.config.enable_prompt_tokens_details:
        return None
    request = submitted.request
    return answer.Details(request.cached_tokens or 0, request.created_tokens, prompt.media_tokens())


async def _stream(
    request: web.Request, backend: Backend, head: answer.Head, prompt: Prompt, asked: Asked, submitted: Submitted
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    detokenizer = Detokenizer(backend.tokenizer)
    outputs = await arrived(submitted.outputs)
    await send(response, answer.first_chunk(head, prompt.token_ids if asked.return_token_ids else None))
    while True:
        token_ids = [output.token_id for output in outputs]
        reason = outputs[-1].finish_reason
        shown = token_ids if asked.return_token_ids else None
        await send(response, answer.text_chunk(head, detokenizer.feed(token_ids), shown, reason))
        if reason is not None:
            break
        outputs = await arrived(submitted.outputs)
    if asked.include_usage:
        details = details_of(backend, submitted, prompt)
        await send(response, answer.usage_chunk(head, submitted.request, details))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def arrived(outputs: asyncio.Queue[Output]) -> list[Output]:
    """The next output and all that came with it: a slow reader gets larger pieces, as from vLLM."""
    arrived = [await outputs.get()]
    while not outputs.empty():
        arrived.append(outputs.get_nowait())
    return arrived


async def send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    """Write one event."""
    await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
