"""A web server with everything a media URL should not lead to."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Self

from aiohttp import web

from tests.unit.media.images import encoded, huge_png, image

PAGE = b"<!doctype html><html><body>404, said with status 200</body></html>"


def jpeg() -> bytes:
    """A whole image."""
    return encoded(image(224, 168), "JPEG")


def bad_files() -> dict[str, bytes]:
    """File name to bytes: none of them is an image an engine can use."""
    return {
        "truncated.jpg": jpeg()[:400],
        "empty.jpg": b"",
        "page.jpg": PAGE,
        "huge.png": huge_png(20_000, 20_000),
    }


class Site:
    """Serves ``bad_files``, a good image, a redirect loop, and a page that never ends. Counts what is asked for."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self._files = {**bad_files(), "good.jpg": jpeg()}
        app = web.Application()
        app.router.add_get("/loop", self._loop)
        app.router.add_get("/stuck.jpg", self._stuck)
        app.router.add_get("/{name}", self._file)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    @property
    def url(self) -> str:
        """Its root, without a slash."""
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.asked[name] += 1
        if name not in self._files:
            raise web.HTTPNotFound
        return web.Response(body=self._files[name], content_type="image/jpeg")

    async def _loop(self, request: web.Request) -> web.Response:
        raise web.HTTPFound("/loop")

    async def _stuck(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"\xff\xd8")
        await asyncio.sleep(3600)
        return response
