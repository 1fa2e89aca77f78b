"""The gateway, wired: HTTP in, ``requests`` out; its own responses topic in, answers out."""

from __future__ import annotations

from typing import TypeVar

from schemas.types import Message
from schemas.work import Response
from schemas.worker import Heartbeat, Worker
from services.gateway.admission import Admission
from services.gateway.chat import Chat
from services.gateway.fleet import Fleet
from services.gateway.keys import ApiKeys
from services.gateway.pending import Register
from services.gateway.server import GatewayServer
from services.runtime.blobs import Blobs
from services.runtime.bus import Record
from services.runtime.errors import BadRecord
from services.runtime.metrics import GATEWAY_FIRST_PIECE_SECONDS, GATEWAY_IN_FLIGHT, GATEWAY_PIECES
from services.runtime.projection import Projection
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import HEARTBEATS, RESPONSES, WORKERS, responses_topic

M = TypeVar("M", bound=Message)
_CHECK_SECONDS = 1.0
_BODY_BUDGET_BYTES = 256 << 20
"""Of all bodies being read or published at once; one may be as large as KVROUTE_GATEWAY_MAX_BODY_BYTES."""


class GatewayApp:
    """What lives as long as the gateway: the register of pending requests, the fleet, the server."""

    def __init__(self, settings: Settings, service: Service) -> None:
        keys = settings.gateway_api_keys
        self._service = service
        self._clock = service.clock
        self.fleet = Fleet(settings.lease_seconds)
        self.register = Register()
        budget = max(_BODY_BUDGET_BYTES, 2 * settings.gateway_max_body_bytes)
        self.admission = Admission(settings.gateway_max_in_flight, budget)
        self.blobs = Blobs.of(settings, clock=service.clock)
        self.reply_to = responses_topic(service.instance)
        self.chat = Chat(
            service,
            ApiKeys.parse(keys.get_secret_value() if keys is not None else None),
            self.admission,
            self.register,
            self.blobs,
            self.reply_to,
        )
        self.heartbeats: Projection | None = None
        self.server = GatewayServer(service, self.chat, self.fleet, self.register)
        GATEWAY_IN_FLIGHT.set_function(lambda: self.admission.in_flight)

    async def start(self) -> None:
        """Make the responses topic, read it, listen."""
        await self._service.ensure_topic(self.reply_to, RESPONSES)
        self._service.consume_from(self.reply_to, self.take_piece)
        await self.server.start()

    async def take_piece(self, record: Record) -> None:
        """Take one record of the responses topic."""
        piece = _decode(Response, record)
        if piece is None:
            return
        pending = self.register.get(piece.key)
        if pending is None:
            GATEWAY_PIECES.labels("nobody_waits").inc()
            return
        now = self._clock.monotonic()
        before = pending.answered
        pending.take(piece, now)
        GATEWAY_PIECES.labels("taken").inc()
        if not before and pending.answered:
            self.admission.answered(piece.key, now)
            kind = "route" if pending.asked.route_only else "stream" if pending.asked.stream else "whole"
            waited = max(0, self._clock.now_ms() - pending.asked.created_at_ms) / 1000
            GATEWAY_FIRST_PIECE_SECONDS.labels(kind).observe(waited)

    async def check(self) -> None:
        """Break off answers whose worker is gone or whose pieces are missing."""
        now = self._clock.monotonic()
        for pending in self.register.all():
            pending.check(now, self.fleet.ended)

    def apply_worker(self, record: Record) -> None:
        """Take a registration, or its deletion."""
        if record.value is None:
            self.fleet.forget((record.key or b"").decode("utf-8", "replace"))
            return
        worker = _decode(Worker, record)
        if worker is not None:
            self.fleet.register(worker)

    def apply_heartbeat(self, record: Record) -> None:
        """Take a heartbeat. One that was there before this process says nothing of now."""
        beat = _decode(Heartbeat, record)
        if beat is not None and self.heartbeats is not None and self.heartbeats.caught_up:
            self.fleet.heartbeat(beat, self._clock.monotonic())


def build(settings: Settings, service: Service) -> GatewayApp:
    """Register the gateway on its service."""
    app = GatewayApp(settings, service)
    service.project(WORKERS, app.apply_worker)
    app.heartbeats = service.project(HEARTBEATS, app.apply_heartbeat)
    service.every(_CHECK_SECONDS, app.check, name="check_answers")
    service.ready_when(app.blobs.description, app.blobs.usable)
    service.on_start(app.start)
    service.on_drain(app.server.drain)
    service.on_stop(app.server.stop)
    return app


def _decode(kind: type[M], record: Record) -> M | None:
    """The record's message; None for a tombstone. Raises BadRecord."""
    if record.value is None:
        return None
    try:
        return kind.from_bytes(record.value)
    except ValueError as error:
        raise BadRecord("invalid_message", f"{record.topic}: {type(error).__name__}, expected {kind.SCHEMA}") from None
