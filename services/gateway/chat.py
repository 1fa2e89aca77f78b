"""The way of one chat or route request: let in, published, answered, and cancelled when nobody needs it any more."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace

from aiohttp import web

from schemas.control import Control, ControlKind
from services.gateway.admission import Admission
from services.gateway.answer import FINAL, Answer
from services.gateway.body import held, read_limited
from services.gateway.intake import Asked, read_asked, read_body
from services.gateway.keys import ApiKeys
from services.gateway.pending import Pending, Register
from services.runtime import trace
from services.runtime.blobs import Blobs
from services.runtime.errors import BadRecord, Refused
from services.runtime.metrics import GATEWAY_ENDED
from services.runtime.offload import run_alone
from services.runtime.service import Service
from services.runtime.topics import CONTROL, REQUESTS

OFF_LOOP_BYTES = 256 << 10
_SETTLE_SECONDS = 5.0


class Chat:
    """Serves chat and route requests."""

    def __init__(
        self,
        service: Service,
        keys: ApiKeys | None,
        admission: Admission,
        register: Register,
        blobs: Blobs,
        reply_to: str,
    ) -> None:
        self._service = service
        self._settings = service.settings
        self._clock = service.clock
        self._keys = keys
        self._admission = admission
        self._register = register
        self._blobs = blobs
        self._reply_to = reply_to
        self.draining = False
        self._farewells: set[asyncio.Task[None]] = set()

    def tenant_of(self, request: web.Request) -> str:
        """The tenant of the request's API key; empty when no keys are configured. Raises Refused (401)."""
        return "" if self._keys is None else self._keys.tenant(request.headers.get("Authorization"))

    async def serve(self, request: web.Request, *, route_only: bool = False, book: bool = False) -> web.StreamResponse:
        """Serve one request. Raises Refused, Transient or BadRecord before anything was answered."""
        tenant = self.tenant_of(request)
        if self.draining:
            raise Refused(503, "the gateway is stopping", type="service_unavailable_error", code="stopping")
        self._admission.check_room()
        with ExitStack() as in_flight:
            # The body is let go of before anybody waits for the answer.
            with held(self._admission) as holding:
                raw = await read_limited(request, self._settings.gateway_max_body_bytes, holding)
                in_flight.enter_context(self._admission.entered())
                pending = await self._submit(request, raw, tenant, route_only=route_only, book=book)
                del raw
            return await self._answer(request, pending)

    async def settle(self) -> None:
        """Wait until every cancellation was sent, for a while."""
        if self._farewells:
            await asyncio.wait(set(self._farewells), timeout=_SETTLE_SECONDS)

    async def done(self, request: web.Request, request_id: str) -> None:
        """A booked route's request has been answered elsewhere: its load no longer counts."""
        order = Control(
            kind=ControlKind.DONE,
            at_ms=self._clock.now_ms(),
            request_id=request_id,
            tenant=self.tenant_of(request),
        )
        await self._service.sender.send(CONTROL.name, order, key=order.key)

    async def _submit(
        self, request: web.Request, raw: bytes, tenant: str, *, route_only: bool, book: bool
    ) -> Pending:
        """Put a request into Kafka."""
        body = await run_alone(read_body, raw) if len(raw) > OFF_LOOP_BYTES else read_body(raw)
        asked = read_asked(
            request.headers,
            body,
            tenant=tenant,
            now_ms=self._clock.now_ms(),
            deadline_seconds=self._settings.deadline_seconds,
            route_only=route_only,
            book=book,
        )
        pending = self._enter(replace(asked, body={}))
        parent = trace.of_headers(tuple((name.lower(), value.encode()) for name, value in request.headers.items()))
        token = trace.current.set(parent)
        try:
            await self._publish(asked, raw)
        except (BadRecord, Refused):
            self._over(pending, "not_published", published=False)
            raise
        except BaseException:
            # It may have reached Kafka all the same.
            self._over(pending, "not_confirmed", published=True)
            raise
        finally:
            trace.current.reset(token)
        return pending

    async def _answer(self, request: web.Request, pending: Pending) -> web.StreamResponse:
        answer = Answer(request, pending, self._clock)
        try:
            return await answer.write()
        finally:
            self._over(pending, answer.ended or "client_gone", published=True)

    def _enter(self, asked: Asked) -> Pending:
        now = self._clock.monotonic()
        self._admission.check_outlook((asked.deadline_ms - self._clock.now_ms()) / 1000, now)
        pending = Pending(asked)
        self._register.add(pending, now)
        if asked.begins_soon:
            self._admission.published(asked.key, now)
        return pending

    def _over(self, pending: Pending, why: str, *, published: bool) -> None:
        """A request ended here. Unless it ended with its final piece, nobody needs it any more."""
        asked = pending.asked
        GATEWAY_ENDED.labels(why).inc()
        self._admission.gone(asked.key)
        self._register.remove(pending, self._clock.monotonic(), published=published)
        if published and why != FINAL:
            task = self._service.spawn(self._cancel(asked, why), name=f"cancel {asked.key}")
            self._farewells.add(task)
            task.add_done_callback(self._farewells.discard)

    async def _publish(self, asked: Asked, raw: bytes) -> None:
        """Put the request into Kafka; a large body goes beside it."""
        claim = None
        if len(raw) > self._settings.blob_body_bytes:
            claim = await self._blobs.put(raw, "application/json")
        message = asked.request(self._reply_to, claim)
        try:
            await self._service.sender.send(REQUESTS.name, message, key=asked.key)
        except (ValueError, TypeError, RecursionError):
            raise Refused(400, "the body nests deeper than 250 levels", code="too_deep") from None

    async def _cancel(self, asked: Asked, why: str) -> None:
        order = Control(
            kind=ControlKind.CANCEL,
            at_ms=self._clock.now_ms(),
            request_id=asked.request_id,
            tenant=asked.tenant,
            reason=why,
        )
        await self._service.sender.send(CONTROL.name, order, key=order.key)
