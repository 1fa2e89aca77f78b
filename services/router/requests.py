"""What Kafka says of every request in flight: its attempts, who decided first, what happened since. Pure.

The first record in ``decisions`` for (request, attempt) is the decision. A router's own decision counts from the
moment it is made; reading the topic back confirms it, or says that another one was first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from schemas.decision import Decision, Outcome, Position
from schemas.lifecycle import Lifecycle, LifecycleEvent
from services.kv.reason import Reason
from services.router.booking import life_of
from services.router.recent import Recent
from services.router.slots import Slot, SlotEpoch

SAME_REQUEST_MS = 3_600_000
"""The same id within this is the same request: it is not decided again."""
OF_THE_MEDIUM = frozenset(
    {Reason.FETCH_FAILED, Reason.DECODE_FAILED, Reason.CODEC_UNSUPPORTED, Reason.TOO_LARGE, Reason.UNSUPPORTED_MEDIA}
)
"""Reasons that speak of a medium's bytes: an engine that is given it will hardly do better."""
GRACE_MS = 60_000
"""How long after its deadline a request without an end is still followed."""


class Verdict(Enum):
    """What a decision record turned out to be."""

    FIRST = "first"
    SAME = "same"
    LOST = "lost"


@dataclass(slots=True)
class Standing:
    """What is known of one attempt."""

    decision: Decision
    confirmed: bool
    """Read back from the topic: no other record can be first any more."""
    life: SlotEpoch | None
    started: bool = False
    end: Lifecycle | None = None


@dataclass(slots=True)
class RequestState:
    """One request in flight."""

    key: str
    deadline_ms: int
    expanded: Position
    attempts: dict[int, Standing] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The highest attempt."""
        return max(self.attempts)

    @property
    def standing(self) -> Standing:
        """The highest attempt's."""
        return self.attempts[self.last]

    @property
    def tried(self) -> frozenset[Slot]:
        """Slots that earlier attempts went to: the next one goes elsewhere."""
        return frozenset(standing.life.slot for standing in self.attempts.values() if standing.life is not None)


class Requests:
    """All requests in flight, and the keys of those that ended."""

    def __init__(self) -> None:
        self._open: dict[str, RequestState] = {}
        self._by_life: dict[SlotEpoch, set[str]] = {}
        self._early: dict[str, list[Lifecycle]] = {}
        self._settled: Recent[str] = Recent(SAME_REQUEST_MS)

    def __len__(self) -> int:
        """Requests in flight."""
        return len(self._open)

    def get(self, key: str) -> RequestState | None:
        """A request in flight that was decided at least once."""
        return self._open.get(key)

    def settled(self, key: str) -> bool:
        """Whether the request ended within the last hour."""
        return key in self._settled

    def decided(self, decision: Decision, *, confirmed: bool) -> Verdict:
        """Take a decision: our own when it is made (not confirmed), anybody's when it is read from the topic."""
        state = self._open.get(decision.key)
        if state is None:
            if decision.key in self._settled:
                return Verdict.SAME
            state = RequestState(decision.key, decision.deadline_ms, decision.expanded)
            self._open[decision.key] = state
        known = state.attempts.get(decision.attempt)
        life = life_of(decision)
        if known is not None and (known.confirmed or known.life == life):
            same = known.life == life
            known.confirmed = known.confirmed or confirmed
            return Verdict.SAME if same else Verdict.LOST
        self._place(state, Standing(_without_bulk(decision), confirmed, life))
        return Verdict.FIRST

    def fact(self, fact: Lifecycle, now_ms: int) -> None:
        """Take a lifecycle fact. One read before its decision waits for it; a loser's says nothing.

        While a decision of ours is unconfirmed, a fact of another worker may be that of the one that was first.
        """
        key = fact.key
        if fact.attempt == 0:
            if fact.event is not LifecycleEvent.ACCEPTED:
                self.settle(key, now_ms)
            return
        if key in self._settled or self.is_a_losers(fact):
            return
        state = self._open.get(key)
        standing = state.attempts.get(fact.attempt) if state is not None else None
        elsewhere = standing is not None and _is_elsewhere(fact, standing)
        if fact.event in (LifecycleEvent.FINISHED, LifecycleEvent.CANCELLED) and not elsewhere:
            if state is None or fact.attempt >= state.last:
                self.settle(key, now_ms)
        elif state is None or standing is None or elsewhere:
            self._early.setdefault(key, []).append(fact)
        else:
            self._note(state, fact, now_ms)

    def is_a_losers(self, fact: Lifecycle) -> bool:
        """Whether a worker states it whose decision lost: the attempt is another worker's, and that is certain."""
        state = self._open.get(fact.key)
        standing = state.attempts.get(fact.attempt) if state is not None else None
        return standing is not None and standing.confirmed and _is_elsewhere(fact, standing)

    def settle(self, key: str, now_ms: int) -> None:
        """The request is over, whatever its attempts still say."""
        self._settled.add(key, now_ms)
        self._early.pop(key, None)
        state = self._open.pop(key, None)
        for standing in state.attempts.values() if state is not None else ():
            self._leave_life(key, standing.life)

    def lives(self) -> list[SlotEpoch]:
        """Lives that attempts in flight were sent to."""
        return list(self._by_life)

    def on_life(self, life: SlotEpoch) -> frozenset[str]:
        """Requests in flight with an attempt sent to this life."""
        return frozenset(self._by_life.get(life, ()))

    def of_partitions(self, partitions: Iterable[int]) -> list[RequestState]:
        """Requests in flight whose expanded record is in one of the partitions."""
        wanted = frozenset(partitions)
        return [state for state in self._open.values() if state.expanded.partition in wanted]

    def expire(self, now_ms: int) -> None:
        """Stop following what is long past its deadline."""
        late = [key for key, state in self._open.items() if state.deadline_ms + GRACE_MS <= now_ms]
        for key in late:
            self.settle(key, now_ms)
        self._settled.forget(now_ms)
        for key in [key for key, facts in self._early.items() if facts[-1].at_ms + SAME_REQUEST_MS <= now_ms]:
            del self._early[key]

    def _place(self, state: RequestState, standing: Standing) -> None:
        number, decided_ms = standing.decision.attempt, standing.decision.now_ms
        replaced = state.attempts.get(number)
        state.attempts[number] = standing
        if replaced is not None and replaced.life not in {s.life for s in state.attempts.values()}:
            self._leave_life(state.key, replaced.life)
        if standing.life is not None:
            self._by_life.setdefault(standing.life, set()).add(state.key)
        if facts := self._early.pop(state.key, None):
            for fact in facts:
                self.fact(fact, decided_ms)

    def _note(self, state: RequestState, fact: Lifecycle, now_ms: int) -> None:
        standing = state.attempts[fact.attempt]
        if fact.event is LifecycleEvent.FIRST_TOKEN:
            standing.started = True
        elif fact.event in (LifecycleEvent.FAILED, LifecycleEvent.REFUSED):
            standing.end = standing.end or fact
            if fact.attempt == state.last and not may_be_routed_again(fact):
                self.settle(state.key, now_ms)

    def _leave_life(self, key: str, life: SlotEpoch | None) -> None:
        if life is not None and (keys := self._by_life.get(life)) is not None:
            keys.discard(key)
            if not keys:
                del self._by_life[life]


def may_be_routed_again(fact: Lifecycle) -> bool:
    """Whether another worker may still answer: nothing was, and the failure was the worker's."""
    return fact.event in (LifecycleEvent.FAILED, LifecycleEvent.REFUSED) and fact.retryable and fact.before_output


def _is_elsewhere(fact: Lifecycle, standing: Standing) -> bool:
    """Whether the fact is about another slot, or another life of it, than the decision we know of."""
    if fact.worker_id is None or fact.epoch is None:
        return False
    return standing.life != SlotEpoch(fact.worker_id, fact.dp_rank, fact.epoch)


def _without_bulk(decision: Decision) -> Decision:
    """The part that is needed to send the same work again, and to say why; a decision in full is 5 to 20 KB."""
    if decision.outcome is not Outcome.ROUTED or not decision.route_only:
        media = decision.media[: _first_wrong(decision) + 1]
        return decision.model_copy(update={"addresses": [], "candidates": [], "projection": [], "media": media})
    return decision.model_copy(update={"addresses": [], "projection": [], "media": []})


def _first_wrong(decision: Decision) -> int:
    """Which medium the decision's reason speaks of; -1: none."""
    if decision.reason not in OF_THE_MEDIUM:
        return -1
    return next((number for number, one in enumerate(decision.media) if one.reason is decision.reason), -1)
