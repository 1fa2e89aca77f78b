"""Writes an answer over HTTP: whole, as server-sent events, or as a route."""

from __future__ import annotations

import asyncio

import orjson
from aiohttp import web

from schemas.work import Response
from services.gateway.binding import Broken
from services.gateway.openai_error import error_event, error_response, of_refusal
from services.gateway.pending import Pending
from services.runtime.clock import Clock
from services.runtime.refusal import deadline_exceeded

FINAL = "final"


class Answer:
    """Takes a request's pieces and writes them."""

    def __init__(self, request: web.Request, pending: Pending, clock: Clock) -> None:
        self._request = request
        self._pending = pending
        self._clock = clock
        self.ended: str | None = None
        """Why it ended: ``FINAL`` when the final piece was taken; None while it goes on."""

    async def write(self) -> web.StreamResponse:
        """Write the answer to its end: exactly one final answer, or the deadline's error."""
        first = await self._next()
        if isinstance(first, Broken):
            return error_response(first.error, self._headers(None))
        if first.error is not None:
            return error_response(first.error, self._headers(first))
        if self._pending.asked.route_only:
            return self._route(first)
        if self._pending.asked.stream:
            return await self._stream(first)
        return await self._whole(first)

    def _route(self, piece: Response) -> web.Response:
        body = {"request_id": piece.request_id, "attempt": piece.attempt} | (piece.route or {})
        return web.Response(
            body=orjson.dumps(body), content_type="application/json", headers=self._headers(piece)
        )

    async def _whole(self, first: Response) -> web.Response:
        pieces, piece = [first.chunk], first
        while not piece.final:
            following = await self._next()
            if isinstance(following, Broken):
                return error_response(following.error, self._headers(first))
            if following.error is not None:
                return error_response(following.error, self._headers(first))
            piece = following
            pieces.append(piece.chunk)
        return web.Response(
            body="".join(pieces).encode(), content_type="application/json", headers=self._headers(first)
        )

    async def _stream(self, first: Response) -> web.StreamResponse:
        response = web.StreamResponse(headers=self._headers(first))
        response.content_type = "text/event-stream"
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Accel-Buffering"] = "no"
        await response.prepare(self._request)
        piece: Response | Broken = first
        while True:
            if isinstance(piece, Broken):
                await response.write(error_event(piece.error))
                break
            if piece.chunk:
                await response.write(piece.chunk.encode())
            if piece.error is not None:
                await response.write(error_event(piece.error))
            if piece.final:
                break
            piece = await self._next()
        await response.write_eof()
        return response

    async def _next(self) -> Response | Broken:
        left = (self._pending.asked.deadline_ms - self._clock.now_ms()) / 1000
        try:
            async with asyncio.timeout(max(left, 0)):
                piece = await self._pending.next()
        except TimeoutError:
            piece = Broken(of_refusal(deadline_exceeded(0)))
        if isinstance(piece, Broken):
            self.ended = piece.error.code or "broken"
        elif piece.final:
            self.ended = FINAL
        return piece

    def _headers(self, piece: Response | None) -> dict[str, str]:
        headers = {"x-request-id": self._pending.asked.request_id}
        if piece is not None and piece.worker_id is not None:
            headers["x-kvroute-worker"] = piece.worker_id
        if piece is not None and piece.attempt:
            headers["x-kvroute-attempt"] = str(piece.attempt)
        return headers
