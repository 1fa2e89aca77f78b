"""One POST to the engine, from its first byte to its last. It is never repeated once bytes were sent.

Two exceptions, in which the engine has not run anything: nobody listened, and the engine's 400 for a uuid whose
medium its cache has dropped (that one is repeated once, with the data it already carries).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import orjson

from schemas.lifecycle import Usage
from schemas.work import ResponseError
from services.worker.engine import error_message
from services.worker.engine_body import EngineRequest
from services.worker.sse import EventSplitter, SseError, data_of, is_done

CACHE_MISS = re.compile(r"Cache miss for \w+ at index")
RETRYABLE_STATUSES = frozenset({408, 425, 429})
"""Client-error statuses that speak of the engine's state, not of the request: another worker may do better."""

_URL_QUERY = re.compile(r"(https?://[^\s?#'\"]*)[?#][^\s'\"]*")
_DATA_URI = re.compile(r"data:[\w/+.-]*;base64,[A-Za-z0-9+/=]*")
_ADDRESS = re.compile(r"<([\w.]+(?: [\w.<>]+)?) at 0x[0-9a-fA-F]+>")
_MESSAGE_LIMIT = 500


class Pieces(Protocol):
    """A body as it arrives."""

    def iter_any(self) -> AsyncIterator[bytes]:
        """Bytes as they come."""
        ...


class Answers(Protocol):
    """An HTTP answer: the part of aiohttp's that is used."""

    @property
    def status(self) -> int:
        """HTTP status."""
        ...

    @property
    def content_type(self) -> str:
        """Without parameters."""
        ...

    @property
    def content(self) -> Pieces:
        """The body."""
        ...

    async def read(self) -> bytes:
        """The whole body."""
        ...


class PostsChat(Protocol):
    """The engine's chat endpoint."""

    def chat(self, body: bytes, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Answers]:
        """POST; leaving the context ends the request."""
        ...


class Hears(Protocol):
    """Who is told what comes."""

    async def first_token(self) -> None:
        """The first output is here."""
        ...

    async def output(self, text: str) -> None:
        """Whole events of a stream."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the POST ended. ``text`` is what is still to be answered: a plain answer, or a stream's end.

    ``error`` None: it finished. Else ``retryable`` says that another worker may do better; that is so only
    ``before_output``.
    """

    text: str = ""
    usage: Usage | None = None
    error: ResponseError | None = None
    retryable: bool = False
    before_output: bool = True


async def forward(engine: PostsChat, request: EngineRequest, heard: Hears) -> Outcome:
    """Post the request and pass on what comes. Raises CancelledError through: the engine then stops."""
    outcome, missed = await _once(engine, request, heard)
    if missed:
        outcome, _ = await _once(engine, request, heard)
    return outcome


async def _once(engine: PostsChat, request: EngineRequest, heard: Hears) -> tuple[Outcome, bool]:
    begun = _Begun(heard)
    try:
        async with engine.chat(request.body, request.headers) as response:
            if response.status != 200:
                content = await response.read()
                missed = response.status == 400 and CACHE_MISS.search(error_message(content)) is not None
                return _refused(response.status, content), missed
            if request.stream and response.content_type == "text/event-stream":
                return await _stream(response, request.usage_wanted, begun), False
            return await _plain(response, begun), False
    except aiohttp.ClientConnectorError as error:
        return _broken("engine_unreachable", f"the engine does not listen: {error.strerror or error}", begun), False
    except (aiohttp.ClientError, TimeoutError, OSError, SseError) as error:
        return _broken("engine_connection_lost", f"the engine's answer broke off: {type(error).__name__}", begun), False


class _Begun:
    """Knows whether output has begun, and says so once."""

    def __init__(self, heard: Hears) -> None:
        self.heard = heard
        self.output = False

    async def begin(self) -> None:
        if not self.output:
            self.output = True
            await self.heard.first_token()


async def _plain(response: Answers, begun: _Begun) -> Outcome:
    content = await response.read()
    try:
        answer = orjson.loads(content)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        return _broken("engine_answer_invalid", "the engine answered 200 without a JSON object", begun)
    await begun.begin()
    return Outcome(content.decode("utf-8", "replace"), usage_of(answer), before_output=False)


async def _stream(response: Answers, usage_wanted: bool, begun: _Begun) -> Outcome:
    usage: Usage | None = None
    async for data in _payloads(response):
        if is_done(data):
            return Outcome("data: [DONE]\n\n", usage, before_output=False)
        chunk = _object(data)
        if chunk is None:
            return _broken("engine_answer_invalid", "an event of the stream is no JSON object", begun)
        if "error" in chunk:
            return _failed_within(chunk, begun)
        found = usage_of(chunk)
        if found is not None:
            usage = found
            if not chunk.get("choices") and not usage_wanted:
                continue
        await begun.begin()
        await begun.heard.output(f"data: {data.decode('utf-8', 'replace')}\n\n")
    return _broken("engine_connection_lost", "the engine's stream ended without [DONE]", begun)


async def _payloads(response: Answers) -> AsyncIterator[bytes]:
    splitter = EventSplitter()
    async for received in response.content.iter_any():
        for event in splitter.feed(received):
            if (data := data_of(event)) is not None:
                yield data


def usage_of(answer: Mapping[str, Any]) -> Usage | None:
    """Tokens as the engine reports them in an answer or a stream's last chunk."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
    )


def sanitized(message: str) -> str:
    """An engine's message as it may be shown: no payloads, no URL queries, no addresses of its objects, not endless."""
    message = _ADDRESS.sub(_without_address, _URL_QUERY.sub(r"\1?…", _DATA_URI.sub("data:…", message)))
    return message if len(message) <= _MESSAGE_LIMIT else message[: _MESSAGE_LIMIT - 1] + "…"


def _without_address(match: re.Match[str]) -> str:
    return f"<{match[1].removesuffix(' object')}>"


def _refused(status: int, content: bytes) -> Outcome:
    retryable = (status >= 500 and status != 501) or status in RETRYABLE_STATUSES or status in (401, 403)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = ResponseError(
        status=status, type=kind, message=sanitized(error_message(content)), code=f"engine_{status}"
    )
    return Outcome(error=error, retryable=retryable)


def _failed_within(chunk: Mapping[str, Any], begun: _Begun) -> Outcome:
    """An error inside a stream that began with 200."""
    stated = chunk["error"]
    status = stated.get("code") if isinstance(stated, dict) else None
    status = status if isinstance(status, int) and 400 <= status < 600 else 500
    outcome = _refused(status, orjson.dumps({"error": stated}))
    return Outcome(
        error=outcome.error, retryable=outcome.retryable and not begun.output, before_output=not begun.output
    )


def _broken(code: str, message: str, begun: _Begun) -> Outcome:
    error = ResponseError(status=502, type="server_error", message=sanitized(message), code=code)
    return Outcome(error=error, retryable=not begun.output, before_output=not begun.output)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
