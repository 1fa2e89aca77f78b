"""What the media stage does with a record, from its bytes to ``media-resolved``."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from schemas.lifecycle import Lifecycle, LifecycleEvent
from schemas.media import MediaKind, MediaResolved
from schemas.request import Envelope, Request
from services.media.intake import Unreadable, check_body, envelope_of, read_request
from services.media.resolve import OFF_LOOP_BYTES, Resolution
from services.runtime.bus import Record
from services.runtime.errors import Refused, Transient
from services.runtime.offload import run_alone
from services.runtime.refusal import cancelled, deadline_exceeded, error_response, refuse
from services.runtime.service import Service
from services.runtime.topics import LIFECYCLE, MEDIA_RESOLVED

STAGE = "media"


class MediaStage:
    """Handles records of ``requests``.

    The same request_id read twice is passed on twice: this stage keeps nothing, and it can't tell a redelivery from
    a repetition when several replicas share the topic. The router's first decision makes both the same request.
    """

    def __init__(self, service: Service, resolution: Resolution) -> None:
        self._service = service
        self._resolution = resolution
        self._deadline_seconds = service.settings.deadline_seconds

    async def handle(self, record: Record) -> None:
        """Take one record. Raises BadRecord (dead letter) or Transient (again)."""
        try:
            request = await _read(record)
        except Unreadable as unreadable:
            await self._tell(unreadable)
            raise unreadable.bad from None
        now_ms = self._service.clock.now_ms()
        envelope = self._envelope(request, record, request.body, now_ms)
        try:
            self._check_time(envelope, now_ms)
            body = await self._resolution.body_of(request)
            envelope = self._envelope(request, record, body, now_ms)
            check_body(request, body)
            await self._accept(request, envelope, body, record)
        except Refused as refused:
            await refuse(self._service, envelope, refused, stage=STAGE)

    async def _accept(self, request: Request, envelope: Envelope, body: dict[str, Any], record: Record) -> None:
        """Say that the request is accepted, and meanwhile resolve it."""
        clock = self._service.clock
        started = clock.monotonic()
        waited = max(0, clock.now_ms() - record.timestamp_ms) if record.timestamp_ms > 0 else 0
        timings: dict[str, float] = {"media_wait": float(waited)}
        large = request.body_claim is not None or len(record.value or b"") > OFF_LOOP_BYTES
        stated = asyncio.ensure_future(self._state_accepted(envelope, timings))
        try:
            resolved = await self._resolve_in_time(request, envelope, body, timings, large=large)
            self._check_time(envelope, clock.now_ms())
            spent = resolved.timings_ms | {"media": round((clock.monotonic() - started) * 1000, 3)}
            message = resolved.model_copy(update={"timings_ms": spent})
            self._say_videos(message)
            # Without media nothing was awaited so far: both records leave in one request to the broker.
            await self._service.sender.send(MEDIA_RESOLVED.name, message, key=message.key)
        finally:
            await stated

    def _say_videos(self, resolved: MediaResolved) -> None:
        """For operators: what a video's routing goes by."""
        for item in resolved.media:
            if item.kind is MediaKind.VIDEO and item.frame_indices is not None:
                self._service.log.info(
                    "video routing metadata resolved", request=resolved.key, model=resolved.model,
                    frames=item.frames, total_frames=item.total_frames, fps=item.fps, duration=item.duration,
                    width=item.width, height=item.height, format=item.format,
                )  # fmt: skip

    async def _resolve_in_time(
        self, request: Request, envelope: Envelope, body: dict[str, Any], timings: dict[str, float], *, large: bool
    ) -> MediaResolved:
        left = (envelope.deadline_ms - self._service.clock.now_ms()) / 1000
        limit = asyncio.timeout(max(left, 0))
        try:
            async with limit:
                return await self._resolution.resolve(request, envelope, body, timings, large=large)
        except TimeoutError:
            if limit.expired():
                raise deadline_exceeded(0) from None
            raise

    async def _state_accepted(self, envelope: Envelope, timings: dict[str, float]) -> None:
        fact = Lifecycle(
            request_id=envelope.request_id,
            tenant=envelope.tenant,
            event=LifecycleEvent.ACCEPTED,
            stage=STAGE,
            at_ms=self._service.clock.now_ms(),
            created_at_ms=envelope.created_at_ms,
            model=envelope.model,
            stream=envelope.stream,
            route_only=envelope.route_only,
            session_id=envelope.session_id,
            deadline_ms=envelope.deadline_ms,
            timings_ms=timings,
        )
        await self._service.sender.send(LIFECYCLE.name, fact, key=envelope.key)

    def _check_time(self, envelope: Envelope, now_ms: int) -> None:
        if self._service.cancellations.is_cancelled(envelope.key):
            raise cancelled()
        if envelope.deadline_ms <= now_ms:
            raise deadline_exceeded(now_ms - envelope.deadline_ms)

    def _envelope(self, request: Request, record: Record, body: dict[str, Any], now_ms: int) -> Envelope:
        return envelope_of(request, record, body, now_ms=now_ms, deadline_seconds=self._deadline_seconds)

    async def _tell(self, unreadable: Unreadable) -> None:
        """Answer whoever waits for a record that goes to the dead letters, if that could be read."""
        waiting = unreadable.waiting
        if waiting is None:
            return
        refused = Refused(400, str(unreadable.bad), code=unreadable.bad.code)
        response = error_response(waiting, refused)
        with suppress(Transient):  # the dead letter matters more
            await self._service.sender.send(waiting.reply_to, response, key=response.key)


async def _read(record: Record) -> Request:
    if record.value is not None and len(record.value) > OFF_LOOP_BYTES:
        return await run_alone(read_request, record)
    return read_request(record)
