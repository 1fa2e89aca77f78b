"""Takes chats with media to a vLLM engine by way of a rendering: processed once, under our names, then generated.

The engine that renders may be another one (``KVROUTE_RENDER_URL``): then this one decodes and processes nothing. A
rendering runs nothing, so whatever is wrong with it the chat still goes the usual way; once the engine was asked to
generate nothing is repeated.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import aiohttp
import orjson

from services.layout.render.client import RENDER_PATH
from services.runtime.host_memory import HostMemory
from services.runtime.logs import get_logger
from services.runtime.offload import run_alone, run_in_thread
from services.worker.engine import error_message
from services.worker.forward import Answers, PostsChat
from services.worker.generated import ChatHead, generate_body, identifiers
from services.worker.sse import EventSplitter, data_of, is_done

GENERATE_PATH = "/inference/v1/generate"
_SMALL = 32 << 10

_log = get_logger("worker.by_render")


class Posts(PostsChat, Protocol):
    """The engine's HTTP server."""

    @property
    def url(self) -> str:
        """Without a path."""
        ...

    def post(
        self, url: str, body: bytes, headers: Mapping[str, str], seconds: float | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """POST to a whole URL."""
        ...


class ByRender:
    """Posts chats, those with media by way of a rendering."""

    def __init__(
        self, engine: Posts, render_url: str | None, *, seconds: float, memory: HostMemory | None = None,
        now: Callable[[], float] = time.time, renames: Callable[[], bool] = bool,
    ) -> None:  # fmt: skip
        """``seconds`` bound a rendering; the layout stage may have left one in ``memory``; ``now`` is wall time.

        ``renames``: the engine calls media of chats that go the usual way by names of its own. Then all go that way:
        a medium of two names would be cached twice, and found by one only.
        """
        self._engine = engine
        self._render = (render_url or engine.url).rstrip("/") + RENDER_PATH
        self._generate = engine.url.rstrip("/") + GENERATE_PATH
        self._seconds = seconds
        self._memory = memory
        self._now = now
        self._renames = renames
        self._offered = True
        self.generated = 0
        """Chats that went this way."""
        self.taken = 0
        """Renderings that the layout stage had left."""

    @asynccontextmanager
    async def chat(self, body: bytes, headers: Mapping[str, str]) -> AsyncIterator[Answers]:
        """POST a chat request; leaving the context closes the connection, and the engine stops. Raises as aiohttp."""
        rendering = self._offered and not self._renames() and b'"uuid"' in body
        sent = await self._rendered(body, headers) if rendering else None
        if sent is not None:
            data, head, stream = sent
            async with self._engine.post(self._generate, data, headers) as response:
                if not await _missing(response):
                    self.generated += 1
                    yield _Converted(response, head, stream) if response.status == 200 else response
                    return
            self._give_up(f"it offers no {GENERATE_PATH}")
        async with self._engine.chat(body, headers) as usual:
            yield usual

    async def _rendered(self, body: bytes, headers: Mapping[str, str]) -> tuple[bytes, ChatHead, bool] | None:
        """What to generate, or None: the chat goes the usual way."""
        chat = await _off_loop(orjson.loads, body)
        names = identifiers(chat)
        if names is None:
            return None
        request_id = headers.get("X-Request-Id", "")
        if self._memory is not None and (left := await run_in_thread(self._memory.take, request_id.rpartition("-")[0])):
            self.taken += 1
            return await self._checked(left, names, chat, request_id)
        try:
            async with self._engine.post(self._render, body, headers, self._seconds) as response:
                missing, answer = await _missing(response), await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _log.warning("rendering failed, the chat goes the usual way", error=type(error).__name__)
            return None
        if missing:
            self._give_up(f"{self._render} answered {response.status}: start it with --enable-scale-out")
        if response.status != 200:
            return None
        return await self._checked(answer, names, chat, request_id)

    async def _checked(
        self, answer: bytes, names: Mapping[str, list[str]], chat: Mapping[str, Any], request_id: str
    ) -> tuple[bytes, ChatHead, bool] | None:
        prepared: tuple[bytes, ChatHead, bool] | None = await _off_loop(
            self._prepared, answer, names, chat, request_id
        )
        return prepared

    def _prepared(
        self, answer: bytes, names: Mapping[str, list[str]], chat: Mapping[str, Any], request_id: str
    ) -> tuple[bytes, ChatHead, bool] | None:
        try:
            rendered = orjson.loads(answer)
        except orjson.JSONDecodeError:
            return None
        if isinstance(rendered, dict) and rendered.get("reasoning_parser_kwargs") is not None:
            self._give_up("it parses answers for reasoning, which only its chat endpoint does")
        sent = generate_body(rendered, names, chat)
        if sent is None:
            return None
        sent["request_id"] = request_id or sent.get("request_id")
        head = ChatHead(f"chatcmpl-{sent['request_id']}", str(rendered.get("model")), int(self._now()))
        return orjson.dumps(sent), head, bool(sent["stream"])

    def _give_up(self, why: str) -> None:
        if self._offered:
            self._offered = False
            _log.warning("chats go to the engine as they are", engine=self._engine.url, why=why)


class _Converted:
    """An answer of generated text, read as a chat's."""

    status = 200

    def __init__(self, response: aiohttp.ClientResponse, head: ChatHead, stream: bool) -> None:
        self._response = response
        self._head = head
        self.content_type = response.content_type if stream else "application/json"
        self.content = self

    async def read(self) -> bytes:
        """The whole answer."""
        content = await self._response.read()
        try:
            return orjson.dumps(self._head.whole(orjson.loads(content)))
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return b"the engine generated no text"

    async def iter_any(self) -> AsyncIterator[bytes]:
        """The stream's events."""
        splitter = EventSplitter()
        yield _event(self._head.opening())
        async for received in self._response.content.iter_any():
            for event in splitter.feed(received):
                data = data_of(event)
                if data is not None:
                    yield b"data: [DONE]\n\n" if is_done(data) else self._piece(data)

    def _piece(self, data: bytes) -> bytes:
        try:
            return _event(self._head.piece(orjson.loads(data)))
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return b"data: no generated text\n\n"


async def _missing(response: aiohttp.ClientResponse) -> bool:
    """Whether there is no such endpoint; a 404 that says more speaks of the request's model."""
    if response.status == 404:
        said = error_message(await response.read())
        return said.removeprefix("404:").strip().lower() == "not found"
    return response.status in (405, 501)


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


async def _off_loop(fn: Callable[..., Any], data: bytes, *more: Any) -> Any:
    return await run_alone(fn, data, *more) if len(data) > _SMALL else fn(data, *more)
