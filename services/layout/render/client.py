"""Asks render endpoints: few at once, with a deadline. Nothing is kept: a prompt's layout is that of this moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from services.kv.reason import Reason
from services.layout.render.rendered import NotRendered, Rendered
from services.runtime.offload import run_alone

RENDER_PATH = "/v1/chat/completions/render"
CONNECT_SECONDS = 2.0
MOST_BYTES = 64 << 20
"""Of an answer."""

_SMALL = 32 << 10


class Unreachable(NotRendered):
    """Nobody answered there: another engine may."""


class RenderClient:
    """The connections to engines that render."""

    def __init__(self, *, seconds: float, concurrency: int) -> None:
        """``seconds`` bound one rendering, waiting for its turn included."""
        self._seconds = seconds
        self._room = asyncio.Semaphore(concurrency)
        self._session: aiohttp.ClientSession | None = None

    async def render(self, url: str, body: Mapping[str, Any]) -> Rendered:
        """How the engine at a URL lays out a chat. Raises NotRendered, Unreachable."""
        return await read(await self.ask(url, body))

    async def ask(self, url: str, body: Mapping[str, Any]) -> bytes:
        """The same as the engine words it. Raises NotRendered, Unreachable."""
        data = orjson.dumps(body)
        try:
            async with asyncio.timeout(self._seconds), self._room:
                return await self._post(url.rstrip("/") + RENDER_PATH, data)
        except TimeoutError:
            detail = f"the engine did not render the prompt within {self._seconds:g} s"
            raise NotRendered(Reason.BUDGET_EXCEEDED, detail) from None
        except (aiohttp.ClientError, OSError) as error:
            detail = f"no answer from the engine that renders: {type(error).__name__}"
            raise Unreachable(Reason.CONTRACT_MISSING, detail) from None

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _post(self, url: str, data: bytes) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            )
        headers = {"content-type": "application/json"}
        async with self._session.post(url, data=data, headers=headers, allow_redirects=False) as response:
            content = await response.content.read(MOST_BYTES + 1)
            while len(content) <= MOST_BYTES and (more := await response.content.read(MOST_BYTES + 1 - len(content))):
                content += more
        if len(content) > MOST_BYTES:
            raise NotRendered(Reason.BUDGET_EXCEEDED, f"the engine's rendering has over {MOST_BYTES} bytes")
        if response.status in (404, 405, 501):
            detail = f"the engine offers no {RENDER_PATH}: start it with --enable-scale-out, or set KVROUTE_RENDER_URL"
            raise NotRendered(Reason.CONTRACT_MISSING, detail)
        if response.status in (408, 429) or response.status >= 500:
            raise Unreachable(Reason.CONTRACT_MISSING, f"the engine that renders answered {response.status}")
        if response.status != 200:
            raise NotRendered(Reason.TEMPLATE_MISMATCH, f"the engine refuses to render the prompt: {response.status}")
        return bytes(content)


async def read(answer: bytes) -> Rendered:
    """What an answer says. Raises NotRendered."""
    return await run_alone(_read, answer) if len(answer) > _SMALL else _read(answer)


def _read(answer: bytes) -> Rendered:
    try:
        return Rendered.read(orjson.loads(answer))
    except orjson.JSONDecodeError:
        raise NotRendered(Reason.PLACEHOLDER_MISMATCH, "the engine's rendering is not JSON") from None
