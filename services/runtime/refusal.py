"""Ending a request on purpose: the fact goes to lifecycle, the answer to whoever waits for it.

Every stage ends requests through :func:`refuse`, so that a refusal looks the same wherever it happened.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from schemas.lifecycle import Lifecycle, LifecycleEvent
from schemas.types import Message, request_key
from schemas.work import Response, ResponseError
from services.runtime.bus import Sender
from services.runtime.clock import Clock
from services.runtime.errors import BadRecord, Refused
from services.runtime.logs import get_logger
from services.runtime.topics import LIFECYCLE

CANCELLED_STATUS = 499
"""Status of a request whose client went away (nginx's word for it; never sent over HTTP)."""

_DETAIL_LIMIT = 500
_log = get_logger("runtime.refusal")


class Addressed(Protocol):
    """What a refusal must know of a request: an Envelope, a Decision, a Work, or a few fields that were recovered."""

    @property
    def request_id(self) -> str:
        """The request."""
        ...

    @property
    def tenant(self) -> str:
        """Its tenant, empty for none."""
        ...

    @property
    def created_at_ms(self) -> int:
        """Wall milliseconds of its acceptance."""
        ...

    @property
    def reply_to(self) -> str | None:
        """Where its answer goes; None: nobody waits."""
        ...


class Stage(Protocol):
    """The part of a service that a refusal uses."""

    @property
    def sender(self) -> Sender:
        """Publishes."""
        ...

    @property
    def clock(self) -> Clock:
        """Tells the time."""
        ...


def cancelled() -> Refused:
    """The refusal of a request whose client cancelled it."""
    return Refused(CANCELLED_STATUS, "the request was cancelled", type="cancelled", code="cancelled")


def deadline_exceeded(late_ms: int) -> Refused:
    """The refusal of a request whose deadline passed ``late_ms`` milliseconds ago."""
    return Refused(
        504, f"the request's deadline passed {max(late_ms, 0)} ms ago", type="timeout_error", code="deadline_exceeded"
    )


async def refuse(service: Stage, envelope: Addressed, refused: Refused, *, stage: str, attempt: int = 0) -> None:
    """End a request: publish Lifecycle (refused, or cancelled for status 499) and, if it has one, the final answer.

    Both are sent at once and awaited together. Raises Transient when the broker can't be reached; doing it again is
    harmless, since readers drop a second (request, attempt, index). An answer whose topic does not exist is dropped:
    nobody can read it, and the fact is stated.
    """
    sends = [_send_lifecycle(service, envelope, refused, stage, attempt)]
    if envelope.reply_to:
        sends.append(_send_answer(service, envelope.reply_to, error_response(envelope, refused, attempt), envelope))
    outcomes = await asyncio.gather(*sends, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


def error_response(envelope: Addressed, refused: Refused, attempt: int = 0) -> Response:
    """The one and final piece of the answer to a refused request."""
    return Response(
        request_id=envelope.request_id,
        tenant=envelope.tenant,
        attempt=attempt,
        index=0,
        final=True,
        error=ResponseError(status=refused.status, type=refused.type, message=str(refused), code=refused.code),
    )


async def _send_lifecycle(service: Stage, envelope: Addressed, refused: Refused, stage: str, attempt: int) -> None:
    event = LifecycleEvent.CANCELLED if refused.status == CANCELLED_STATUS else LifecycleEvent.REFUSED
    fact = Lifecycle(
        request_id=envelope.request_id,
        tenant=envelope.tenant,
        attempt=attempt,
        event=event,
        stage=stage,
        at_ms=service.clock.now_ms(),
        created_at_ms=envelope.created_at_ms,
        model=getattr(envelope, "model", ""),
        status=refused.status,
        code=refused.code,
        detail=str(refused)[:_DETAIL_LIMIT],
        stream=getattr(envelope, "stream", None),
        route_only=getattr(envelope, "route_only", None),
        session_id=getattr(envelope, "session_id", None),
        deadline_ms=getattr(envelope, "deadline_ms", None),
        timings_ms=getattr(envelope, "timings_ms", {}),
    )
    await _send(service, LIFECYCLE.name, fact, envelope)


async def _send_answer(service: Stage, reply_to: str, answer: Response, envelope: Addressed) -> None:
    try:
        await _send(service, reply_to, answer, envelope)
    except BadRecord as error:
        _log.warning("nobody can be told of a refusal", request=answer.key, error=str(error))


async def _send(service: Stage, topic: str, message: Message, envelope: Addressed) -> None:
    await service.sender.send(topic, message, key=request_key(envelope.tenant, envelope.request_id))
