"""The HTTP server: routes, OpenAI errors, and a clean end."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import orjson
from aiohttp import web

from services.gateway.chat import Chat
from services.gateway.fleet import Fleet
from services.gateway.intake import checked_identifier
from services.gateway.openai_error import Handler, openai_errors
from services.gateway.pending import Register
from services.runtime.health import add_health_routes
from services.runtime.listening import gateway_place
from services.runtime.metrics import GATEWAY_REQUESTS
from services.runtime.service import Service

_SHUTDOWN_SECONDS = 0.5
_ROUTES = ("/v1/chat/completions", "/v1/models", "/v1/route", "/v1/route/{id}/done")


class GatewayServer:
    """Listens for clients. Every connection has TCP_NODELAY: pieces leave when they come."""

    def __init__(self, service: Service, chat: Chat, fleet: Fleet, register: Register) -> None:
        self._service = service
        self._chat = chat
        self._fleet = fleet
        self._register = register
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    @property
    def port(self) -> int:
        """The port it listens on (0: not listening)."""
        if self._runner is None or not self._runner.addresses:
            return 0
        return int(self._runner.addresses[0][1])

    def application(self) -> web.Application:
        """The routes, for a server or a test."""
        app = web.Application(middlewares=[_counted, openai_errors])
        app.router.add_post("/v1/chat/completions", self._chat_completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/route", self._route)
        app.router.add_post("/v1/route/{id}/done", self._done)
        add_health_routes(app, sick=self._service.sick, unready=self._service.unready)
        return app

    async def start(self) -> None:
        """Listen. Raises CannotListen when the port is taken."""
        settings = self._service.settings
        # Cancelling a handler is how a client's going away is noticed while nothing is being written.
        # What was to be waited for, drain() has waited for.
        self._runner = web.AppRunner(
            self.application(), access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_SECONDS
        )
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, settings.gateway_host, settings.gateway_port)
        try:
            await self._site.start()
        except OSError as error:
            raise gateway_place(settings.gateway_host, settings.gateway_port).error(error) from None
        self._service.log.info("gateway listens", host=settings.gateway_host, port=self.port)

    async def drain(self) -> None:
        """Take no new requests and wait for those in flight, as long as the setting says."""
        self._chat.draining = True
        site, self._site = self._site, None
        if site is not None:
            await site.stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._register.wait_empty(), self._service.settings.drain_seconds)

    async def stop(self) -> None:
        """Close what is left."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        await self._chat.settle()

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        return await self._chat.serve(request)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        book = request.query.get("book", "").lower() in ("1", "true", "yes")
        return await self._chat.serve(request, route_only=True, book=book)

    async def _done(self, request: web.Request) -> web.StreamResponse:
        request_id = checked_identifier(request.match_info["id"], "the id in the path")
        await self._chat.done(request, request_id)
        return _json({"request_id": request_id, "status": "accepted"}, status=202)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self._chat.tenant_of(request)
        data = [
            {"id": name, "object": "model", "created": since // 1000, "owned_by": "kvroute", "parent": base}
            for name, (base, since) in self._fleet.models(self._service.clock.monotonic()).items()
        ]
        return _json({"object": "list", "data": data})


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")


@web.middleware
async def _counted(request: web.Request, handler: Handler) -> web.StreamResponse:
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None and resource.canonical in _ROUTES else "other"
    status = "aborted"
    try:
        response = await handler(request)
        status = str(response.status)
        return response
    finally:
        GATEWAY_REQUESTS.labels(route, status).inc()
