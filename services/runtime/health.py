"""/healthz, /readyz and /metrics of a stage: a tiny server of its own."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.runtime.listening import health_place

Reasons = Callable[[], list[str]]


class HealthServer:
    """Answers 200 while there is no reason not to; else 503 with the reasons."""

    def __init__(self, host: str, port: int, *, sick: Reasons, unready: Reasons) -> None:
        self._host = host
        self._port = port
        self._sick = sick
        self._unready = unready
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port it listens on (0: not listening)."""
        if self._runner is None or not self._runner.addresses:
            return 0
        return int(self._runner.addresses[0][1])

    async def start(self) -> None:
        """Listen. Raises CannotListen when the port is taken."""
        app = web.Application()
        add_health_routes(app, sick=self._sick, unready=self._unready)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            raise health_place(self._host, self._port).error(error) from None

    async def stop(self) -> None:
        """Stop listening."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()


def add_health_routes(app: web.Application, *, sick: Reasons, unready: Reasons) -> None:
    """Add /healthz, /readyz and /metrics to an application that has its own port, such as the gateway."""

    async def healthz(_: web.Request) -> web.Response:
        return _answer(sick())

    async def readyz(_: web.Request) -> web.Response:
        return _answer(sick() + unready())

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)


def _answer(reasons: list[str]) -> web.Response:
    body = {"status": "unavailable", "reasons": reasons} if reasons else {"status": "ok"}
    return web.Response(
        status=503 if reasons else 200, body=orjson.dumps(body), headers={"Content-Type": "application/json"}
    )
