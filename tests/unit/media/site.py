"""A web server on this machine that serves media in good and bad ways, and counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass
class Site:
    """``files`` by path. ``ranges`` False: Range is ignored. ``headers`` are added; with an ETag among them a
    client that knows it gets no body. ``delay`` seconds are waited.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    content_types: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    chunked: bool = False
    delay: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)
    unchanged: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    server: TestServer | None = None

    async def start(self) -> Site:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._serve)
        self.server = TestServer(app, host="127.0.0.1")
        await self.server.start_server()
        return self

    async def stop(self) -> None:
        assert self.server is not None
        await self.server.close()

    def url(self, path: str) -> str:
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.port}{path}"

    @property
    def total(self) -> int:
        return sum(self.requests.values())

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.requests[path] += 1
        if self.delay:
            await asyncio.sleep(self.delay)
        if path in self.redirects:
            return web.Response(status=302, headers={"Location": self.redirects[path]})
        if path in self.statuses:
            return web.Response(status=self.statuses[path])
        if path not in self.files:
            return web.Response(status=404)
        data = self.files[path]
        etag = self.headers.get("ETag")
        if etag is not None and request.headers.get("If-None-Match") == etag:
            self.unchanged[path] += 1
            return web.Response(status=304, headers=self.headers)
        headers = {"Content-Type": self.content_types.get(path, "image/png")} | self.headers
        status = 200
        if self.ranges and "Range" in request.headers:
            first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
            if int(first) >= len(data):
                return web.Response(status=416, headers={"Content-Range": f"bytes */{len(data)}"})
            end = min(int(last), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{end}/{len(data)}"
            data, status = data[int(first) : end + 1], 206
        self.sent_bytes += len(data)
        if not self.chunked:
            return web.Response(status=status, body=data, headers=headers)
        response = web.StreamResponse(status=status, headers=headers)
        response.enable_chunked_encoding()
        await response.prepare(request)
        for start in range(0, len(data), 4096):
            await response.write(data[start : start + 4096])
        return response
