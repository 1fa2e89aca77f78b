"""What one router knows, and how decisions, facts and registrations change it. Pure: times come as arguments."""

from __future__ import annotations

from collections.abc import Callable

from schemas.decision import Decision
from schemas.lifecycle import Lifecycle, LifecycleEvent
from schemas.worker import Worker
from services.router.booking import booking_of
from services.router.fleet import Fleet
from services.router.kv_projection import KvProjection
from services.router.ledger import Ledger
from services.router.predicted import Predicted
from services.router.requests import Requests, Verdict
from services.router.slots import Attempt, SlotEpoch
from services.router.views import Surroundings

FORGET_SECONDS = 600.0
"""A slot that was silent for so long holds no memory any more; if it speaks again, it sends a snapshot when asked."""


class RouterState:
    """Fleet, index, predictions, ledger and requests, kept in step."""

    def __init__(
        self, *, lease_seconds: float, heartbeat_seconds: float, started: float, batch: int, random: Callable[[], float]
    ) -> None:
        """``started`` is monotonic seconds, ``batch`` see Surroundings, ``random`` gives numbers in [0, 1)."""
        self.fleet = Fleet(lease_seconds=lease_seconds, heartbeat_seconds=heartbeat_seconds, started=started)
        self.kv = KvProjection(random=random)
        self.predicted = Predicted()
        self.ledger = Ledger()
        self.requests = Requests()
        self.surroundings = Surroundings(self.fleet, self.kv, self.predicted, self.ledger, batch=batch)

    def decided(self, decision: Decision, now_ms: int, *, confirmed: bool) -> Verdict:
        """Take a decision, our own when it is made or anybody's when it is read. The first one is what is booked."""
        verdict = self.requests.decided(decision, confirmed=confirmed)
        if verdict is Verdict.FIRST:
            self._book(decision, now_ms)
        return verdict

    def fact(self, fact: Lifecycle, now_ms: int) -> None:
        """Take a lifecycle fact. Seeing it twice changes nothing, nor does one of a worker whose decision lost."""
        if self.requests.is_a_losers(fact):
            return
        attempt = Attempt(fact.key, fact.attempt)
        if fact.attempt > 0:
            if fact.event is LifecycleEvent.FIRST_TOKEN:
                self.ledger.first_token(attempt, now_ms)
                self.predicted.first_token(attempt, now_ms)
            elif fact.event is not LifecycleEvent.ACCEPTED:
                self.ledger.close(attempt, now_ms)
                if fact.event is LifecycleEvent.FINISHED:
                    self.predicted.first_token(attempt, now_ms)
                else:
                    self.predicted.drop(attempt)
        self.requests.fact(fact, now_ms)

    def done(self, key: str, now_ms: int) -> None:
        """A request that only asked for its route reports that it is over."""
        state = self.requests.get(key)
        for number in state.attempts if state is not None else (1,):
            self.ledger.close(Attempt(key, number), now_ms)
        self.requests.settle(key, now_ms)

    def registered(self, worker_id: str, worker: Worker | None, now_ms: int) -> list[SlotEpoch]:
        """Take a registration, or with None its deletion. Returns the lives that ended by it."""
        ended = self.fleet.register(worker) if worker is not None else self.fleet.forget(worker_id)
        for life in ended:
            self.kv.retire(life.slot, life.epoch)
            self.ledger.close_life(life, now_ms)
        return ended

    def tidy(self, now: float, now_ms: int) -> None:
        """Let go of what is old."""
        self.predicted.expire(now_ms)
        self.ledger.expire(now_ms)
        self.requests.expire(now_ms)
        for slot in self.fleet.overdue(now, FORGET_SECONDS):
            self.kv.forget(slot)
            del self.fleet.states[slot]

    def _book(self, decision: Decision, now_ms: int) -> None:
        attempt = Attempt(decision.key, decision.attempt)
        booking = booking_of(decision)
        if booking is None:
            self.predicted.drop(attempt)
            if self.ledger.holds(attempt):
                self.ledger.close(attempt, now_ms)
            return
        self.ledger.book(attempt, booking)
        if self.ledger.holds(attempt) and now_ms < decision.deadline_ms:
            self.predicted.add(attempt, booking.life, booking.index, booking.addresses, decision.deadline_ms)
            if self.ledger.started(attempt):
                self.predicted.first_token(attempt, now_ms)
