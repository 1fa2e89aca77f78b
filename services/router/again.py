"""When an attempt is tried again, given up, or left alone (docs/design.md, section 9, "Again"). Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from schemas.lifecycle import Lifecycle, LifecycleEvent
from services.router.requests import RequestState, may_be_routed_again
from services.router.slots import SlotEpoch

_SAID_AS_IT_IS = (429, 503, 504)


class Step(Enum):
    """What the owner of a request's partition does next."""

    WAIT = "wait"
    ROUTE_AGAIN = "route_again"
    GIVE_UP = "give_up"
    STATE_LOSS = "state_loss"
    """The worker was lost after output began: nobody else can go on, but somebody must say so."""


@dataclass(frozen=True, slots=True)
class Next:
    """A step and why. ``status`` and ``code`` are those of the final error, if it comes to that."""

    step: Step
    cause: str = ""
    status: int = 503
    code: str = ""


WAIT = Next(Step.WAIT)


def final_status(end: Lifecycle) -> int:
    """HTTP status of a request whose last attempt ended so: the worker's own where it speaks of its load or absence."""
    if end.event is LifecycleEvent.REFUSED:
        return 503
    return end.status if end.status in _SAID_AS_IT_IS else 502


def next_step(state: RequestState, *, ended: Callable[[SlotEpoch], bool], max_attempts: int, now_ms: int) -> Next:
    """Look at the highest attempt: did its worker fail, refuse, or end its epoch before any output?"""
    standing = state.standing
    end = standing.end
    if standing.decision.route_only:
        return WAIT
    if end is not None:
        if not may_be_routed_again(end) or standing.started:
            return WAIT
        cause, status, code = end.event.value, final_status(end), end.code or "worker_failed"
    elif standing.life is not None and ended(standing.life):
        cause, status, code = "epoch_ended", 503, "worker_lost"
        if standing.started:
            return Next(Step.STATE_LOSS, cause, 502, code)
    else:
        return WAIT
    if now_ms >= state.deadline_ms:
        return Next(Step.GIVE_UP, cause, 504, "deadline_exceeded")
    if state.last >= max_attempts:
        return Next(Step.GIVE_UP, cause, status, code)
    return Next(Step.ROUTE_AGAIN, cause, status, code)
