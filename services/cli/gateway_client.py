"""The gateway as commands see it: OpenAI's HTTP API, and where each answer came from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

import aiohttp
import orjson

from services.cli.exits import Away
from services.runtime.errors import KvrouteError

CONNECT_SECONDS = 5.0


class GatewayRefused(KvrouteError):
    """The gateway answered with an error. ``status`` is HTTP's."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        said = f" ({code})" if code and code not in message else ""
        super().__init__(f"the gateway answered {status}: {message}{said}")
        self.status = status
        self.reason = message
        self.code = code


@dataclass
class Answer:
    """An answer: its pieces of text, and what its headers say of who gave it. Reading them fills ``usage``."""

    headers: Mapping[str, str]
    pieces: AsyncIterator[str]
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def worker(self) -> str | None:
        """The worker that answers."""
        return self.headers.get("x-kvroute-worker")

    @property
    def request_id(self) -> str | None:
        """The request's id."""
        return self.headers.get("x-request-id")


class GatewayClient(Protocol):
    """A connection to one gateway, entered for as long as a command runs."""

    async def __aenter__(self) -> Self:
        """Get ready."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Disconnect."""
        ...

    async def models(self) -> list[str]:
        """Names of the models that can be asked. Raises Away, GatewayRefused."""
        ...

    async def chat(self, body: dict[str, Any], headers: Mapping[str, str]) -> Answer:
        """Send a chat request; returns when the answer begins. Raises Away, GatewayRefused."""
        ...

    async def post(self, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """Post JSON, get JSON (an empty object for an empty answer). Raises Away, GatewayRefused."""
        ...


class HttpGateway:
    """The real one."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Get ready."""
        # No total limit: the gateway ends every request by its deadline.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        self._http = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Disconnect."""
        if self._http is not None:
            await self._http.close()

    async def models(self) -> list[str]:
        """Names of the models that can be asked. Raises Away, GatewayRefused."""
        response = await self._request("GET", "/v1/models")
        async with response:
            document = _object(await response.read())
        return [str(entry.get("id")) for entry in document.get("data", []) if isinstance(entry, dict)]

    async def post(self, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """Post JSON, get JSON (an empty object for an empty answer). Raises Away, GatewayRefused."""
        response = await self._request("POST", path, body, headers)
        async with response:
            raw = await response.read()
        return _object(raw) if raw.strip() else {}

    async def chat(self, body: dict[str, Any], headers: Mapping[str, str]) -> Answer:
        """Send a chat request; returns when the answer begins. Raises Away, GatewayRefused."""
        response = await self._request("POST", "/v1/chat/completions", body, headers)
        usage: dict[str, Any] = {}
        read = _streamed if response.content_type == "text/event-stream" else _whole
        return Answer(response.headers, read(response, usage), usage)

    async def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> aiohttp.ClientResponse:
        assert self._http is not None, "enter the client first"
        data = None if body is None else orjson.dumps(body)
        sent = dict(headers or {}) | ({"Content-Type": "application/json"} if data is not None else {})
        try:
            response = await self._http.request(method, self._url + path, data=data, headers=sent)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            cause = f"{error}" or type(error).__name__
            raise Away(
                f"no gateway answers at {self._url} ({cause}): start one with `kvroute up` or name it with --url"
            ) from error
        if response.status >= 400:
            async with response:
                raise _refusal(response.status, await response.read())
        return response


async def _whole(response: aiohttp.ClientResponse, usage: dict[str, Any]) -> AsyncIterator[str]:
    async with response:
        document = _object(await response.read())
    usage |= document.get("usage") or {}
    for choice in document.get("choices", []):
        text = (choice.get("message") or {}).get("content")
        if text:
            yield str(text)


async def _streamed(response: aiohttp.ClientResponse, usage: dict[str, Any]) -> AsyncIterator[str]:
    """Pieces of text from server-sent events. An error event ends the answer with GatewayRefused."""
    async with response:
        try:
            async for line in response.content:
                if not line.startswith(b"data:") or (data := line[5:].strip()) in (b"", b"[DONE]"):
                    continue
                event = _object(data)
                if "error" in event:
                    raise _refusal(int((event["error"] or {}).get("status") or 502), data)
                usage |= event.get("usage") or {}
                for choice in event.get("choices", []):
                    if text := (choice.get("delta") or {}).get("content"):
                        yield str(text)
        except aiohttp.ClientError as error:
            raise Away(f"the gateway broke off in the middle of the answer: {error}") from error


def _object(raw: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(raw)
    except ValueError:
        raise GatewayRefused(502, f"expected JSON, found {raw[:80]!r}: is this a kvroute gateway?") from None
    if not isinstance(document, dict):
        raise GatewayRefused(502, f"expected a JSON object, found {raw[:80]!r}: is this a kvroute gateway?")
    return document


def _refusal(status: int, raw: bytes) -> GatewayRefused:
    try:
        error = orjson.loads(raw)["error"]
        return GatewayRefused(status, str(error["message"]), error.get("code"))
    except (ValueError, KeyError, TypeError):
        return GatewayRefused(status, raw[:200].decode("utf-8", "replace") or "no reason given")
