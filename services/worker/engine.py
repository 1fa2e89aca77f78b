"""The engine as its HTTP server shows it: only what a stock vLLM offers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import aiohttp
import orjson

from services.runtime.errors import KvrouteError
from services.worker.engine_metrics import EngineMetrics, read_metrics

ASK_SECONDS = 10.0
TOKENIZE_SECONDS = 60.0
CONNECT_SECONDS = 3.0
KEEPALIVE_SECONDS = 3.0
"""Below uvicorn's 5 s: a connection the server is closing must not be given a request that can't be repeated."""


class EngineError(KvrouteError):
    """The engine answered with an error, or not at all. ``status`` is 0 when there was no answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Health(StrEnum):
    """How an engine answers /health."""

    OK = "ok"
    UNWELL = "unwell"
    GONE = "gone"
    """Nobody listens: the process has ended."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What /v1/models tells: the base model first, adapters apart."""

    name: str
    loras: tuple[str, ...] = ()
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where a rank publishes its KV events, as the engine states it."""

    rank: int
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""


class Engine:
    """One engine's HTTP server."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the connection pool."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def health(self) -> Health:
        """Ask /health. Never raises: no answer is an answer."""
        try:
            async with self._open.get(f"{self.url}/health", timeout=_total(ASK_SECONDS)) as response:
                return Health.OK if response.status < 400 else Health.UNWELL
        except (aiohttp.ClientConnectorError, ConnectionError):
            return Health.GONE
        except (aiohttp.ClientError, TimeoutError, OSError):
            return Health.UNWELL

    async def version(self) -> str:
        """The engine's version, empty if it does not say. Raises EngineError when it can't be asked."""
        try:
            return str((await self._get("/version")).get("version", ""))
        except EngineError as error:
            if error.status == 404:
                return ""
            raise

    async def model(self) -> ServedModel:
        """The served model and its adapters. Raises EngineError."""
        entries = (await self._get("/v1/models")).get("data") or []
        bases = [entry for entry in entries if not entry.get("parent")]
        if not bases:
            raise EngineError(200, f"{self.url}/v1/models lists no base model")
        adapters = tuple(str(entry["id"]) for entry in entries if entry.get("parent"))
        return ServedModel(str(bases[0]["id"]), adapters, bases[0].get("max_model_len"))

    async def event_sources(self) -> list[EventSource]:
        """Where the KV events are, by rank; empty when the engine has none or is too old to say. Raises EngineError."""
        try:
            found = await self._get("/kv_event_sources")
        except EngineError as error:
            if error.status in (404, 405, 501):
                return []
            raise
        sources = []
        for rank, source in found.items():
            if isinstance(source, dict) and source.get("enable_kv_cache_events") and source.get("publisher") == "zmq":
                sources.append(
                    EventSource(
                        int(rank), source["endpoint"], source.get("replay_endpoint") or None, source.get("topic") or ""
                    )
                )
        return sorted(sources, key=lambda source: source.rank)

    async def metrics(self) -> EngineMetrics:
        """Load and cache size. Raises EngineError."""
        return read_metrics((await self._read("GET", "/metrics")).decode("utf-8", "replace"))

    async def tokenize(self, body: Mapping[str, Any]) -> list[int]:
        """The engine's own token ids of chat messages, media expanded. Raises EngineError."""
        answer = orjson.loads(await self._read("POST", "/tokenize", body, TOKENIZE_SECONDS))
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        if not isinstance(tokens, list):
            raise EngineError(200, "/tokenize answered without tokens")
        return tokens

    async def complete(self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """A whole chat completion, for probes. Raises EngineError."""
        answer: dict[str, Any] = orjson.loads(
            await self._read("POST", "/v1/chat/completions", body, TOKENIZE_SECONDS, headers)
        )
        return answer

    async def reset_prefix_cache(self) -> bool:
        """Have the engine forget its cache; False when it offers no such thing. Raises EngineError."""
        try:
            await self._read("POST", "/reset_prefix_cache")
        except EngineError as error:
            if error.status in (404, 405, 501):
                return False
            raise
        return True

    def chat(
        self, body: bytes, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """POST a chat request; leaving the context closes the connection, and the engine stops. Raises as aiohttp."""
        return self.post(f"{self.url}/v1/chat/completions", body, headers)

    def post(
        self, url: str, body: bytes, headers: Mapping[str, str], seconds: float | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """POST to a whole URL, within ``seconds`` if given. Raises as aiohttp."""
        timeout = None if seconds is None else _total(seconds)
        return self._open.post(
            url, data=body, headers={"content-type": "application/json", **headers}, timeout=timeout
        )

    async def _get(self, path: str) -> dict[str, Any]:
        try:
            found = orjson.loads(await self._read("GET", path))
        except orjson.JSONDecodeError as error:
            raise EngineError(200, f"{self.url}{path} answered no JSON: {error}") from error
        if not isinstance(found, dict):
            raise EngineError(200, f"{self.url}{path} answered {type(found).__name__}, expected an object")
        return found

    async def _read(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, seconds: float = ASK_SECONDS,
        more_headers: Mapping[str, str] | None = None,
    ) -> bytes:
        data = None if body is None else orjson.dumps(body)
        headers = {**({} if data is None else {"content-type": "application/json"}), **(more_headers or {})}
        try:
            async with self._open.request(
                method, self.url + path, data=data, headers=headers, timeout=_total(seconds)
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineError(0, f"no answer from {self.url}{path}: {type(error).__name__} {error}") from error
        if response.status >= 400:
            raise EngineError(response.status, f"{path} answered {response.status}: {error_message(content)}")
        return content

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the engine's connections are not open: use it as a context")
        return self._session


def error_message(content: bytes) -> str:
    """The message of an OpenAI error body, or the beginning of what came instead."""
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError:
        return content[:300].decode("utf-8", "replace")
    if isinstance(found, dict):
        inner = found.get("error", found)
        message = inner.get("message") if isinstance(inner, dict) else inner
        message = found.get("detail", message) if message is None else message
        return str(message)[:1000]
    return str(found)[:300]


def _total(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
