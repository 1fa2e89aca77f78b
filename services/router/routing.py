"""Deciding one attempt and sending what follows: the decision, its ack, then the work taken from it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

from schemas.control import Control, ControlKind
from schemas.decision import Decision, Outcome, Position
from schemas.expanded import Expanded
from schemas.lifecycle import Lifecycle, LifecycleEvent
from schemas.types import Message
from services.router.again import final_status
from services.router.booking import life_of
from services.router.deciding import Circumstances, decide
from services.router.dispatch import route_answer, work_of
from services.router.policies import Policy
from services.router.requests import OF_THE_MEDIUM, Standing
from services.router.situation import Parameters
from services.router.slots import Attempt, Slot
from services.router.state import RouterState
from services.runtime.errors import BadRecord, Refused
from services.runtime.metrics import (
    ROUTER_DECIDE_SECONDS,
    ROUTER_DECISIONS,
    ROUTER_ENCODER_TOKENS,
    ROUTER_LOST_DECISIONS,
    ROUTER_OVERLAP_BLOCKS,
    ROUTER_PROMPT_BLOCKS,
)
from services.runtime.refusal import refuse
from services.runtime.service import Service
from services.runtime.topics import CONTROL, DECISIONS, KV_EVENTS, LIFECYCLE, work_topic

STAGE = "router"


class Routing:
    """Makes decisions and sends them. Callers hold the request's lock."""

    def __init__(self, service: Service, state: RouterState, policy: Policy, parameters: Parameters) -> None:
        self._service = service
        self._state = state
        self._policy = policy
        self._parameters = parameters
        self._turns: Counter[str] = Counter()
        self._unacked: dict[Attempt, Decision] = {}

    async def route(
        self, expanded: Expanded, position: Position, *, attempt: int = 1, excluded: frozenset[Slot] = frozenset()
    ) -> None:
        """Decide one attempt, publish it, and send it on. Raises Transient; calling ``resume`` goes on from there."""
        decision = self._decide(expanded, position, attempt, excluded)
        self._unacked[Attempt(decision.key, attempt)] = decision
        self._state.decided(decision, self._service.clock.now_ms(), confirmed=False)
        self._tell(decision)
        await self._publish(expanded, decision)
        await self.dispatch(expanded, decision)

    async def resume(self, expanded: Expanded, decision: Decision) -> None:
        """Send on what was decided before, by whomever: nothing is decided anew. Raises Transient."""
        own = self._unacked.get(Attempt(decision.key, decision.attempt))
        if own is not None and life_of(own) == life_of(decision):
            await self._publish(expanded, own)
            decision = own
        await self.dispatch(expanded, decision)

    async def dispatch(self, expanded: Expanded, decision: Decision) -> None:
        """Send the work, the route, or the refusal that a decision means. Doing it twice is harmless."""
        if decision.outcome is not Outcome.ROUTED:
            refused = refusal_of(decision, self._before(decision))
            await refuse(self._service, expanded, refused, stage=STAGE, attempt=decision.attempt)
        elif decision.route_only:
            if decision.reply_to is not None:
                await self._send(decision.reply_to, route_answer(decision), decision.key)
        elif self._still_ours(decision):
            await self._send_work(expanded, decision)

    async def cancel(self, decision: Decision) -> None:
        """Tell the worker of a decision that lost, or whose attempt was given up, to let go of it."""
        life = life_of(decision)
        if life is None:
            return
        order = Control(
            kind=ControlKind.CANCEL,
            at_ms=self._service.clock.now_ms(),
            request_id=decision.request_id,
            tenant=decision.tenant,
            attempt=decision.attempt,
            worker_id=life.worker_id,
            dp_rank=life.dp_rank,
            epoch=life.epoch,
            reason="another decision counts",
        )
        await self._send(CONTROL.name, order, order.key)

    async def cancel_lost(self, decision: Decision) -> None:
        """Cancel a decision of ours that was not the first."""
        ROUTER_LOST_DECISIONS.inc()
        self._service.log.warning(
            "decision lost", request_id=decision.request_id, attempt=decision.attempt, worker_id=decision.worker_id
        )
        await self.cancel(decision)

    async def state_fact(self, fact: Lifecycle) -> None:
        """Publish a fact about an attempt and take it at once."""
        await self._send(LIFECYCLE.name, fact, fact.key)
        self._state.fact(fact, self._service.clock.now_ms())

    def failure(
        self, decision: Decision, *, code: str, detail: str, status: int, before_output: bool, retryable: bool
    ) -> Lifecycle:
        """The fact that an attempt failed."""
        return Lifecycle(
            request_id=decision.request_id,
            tenant=decision.tenant,
            attempt=decision.attempt,
            event=LifecycleEvent.FAILED,
            stage=STAGE,
            at_ms=self._service.clock.now_ms(),
            created_at_ms=decision.created_at_ms,
            model=decision.model,
            worker_id=decision.worker_id,
            dp_rank=decision.dp_rank,
            epoch=decision.epoch,
            status=status,
            code=code,
            detail=detail,
            before_output=before_output,
            retryable=retryable,
            session_id=decision.session_id,
            deadline_ms=decision.deadline_ms,
        )

    def _decide(self, expanded: Expanded, position: Position, attempt: int, excluded: frozenset[Slot]) -> Decision:
        started = time.perf_counter()
        clock = self._service.clock
        now_ms = clock.now_ms()
        turn = self._turns[expanded.model]
        self._turns[expanded.model] += 1
        views = self._state.surroundings.views(expanded, clock.monotonic(), now_ms)
        given = Circumstances(
            policy=self._policy,
            parameters=replace(self._parameters, turn=float(turn)),
            now_ms=now_ms,
            expanded=position,
            attempt=attempt,
            excluded=excluded,
            projection=[
                Position(topic=KV_EVENTS.name, partition=partition, offset=offset)
                for partition, offset in sorted(self._state.kv.positions.items())
            ],
            router=self._service.instance,
        )
        decision = decide(expanded, views, given)
        seconds = time.perf_counter() - started
        ROUTER_DECIDE_SECONDS.observe(seconds)
        timings = expanded.timings_ms | {STAGE: round(seconds * 1000, 3)}
        return decision.model_copy(update={"timings_ms": timings})

    async def _publish(self, expanded: Expanded, decision: Decision) -> None:
        try:
            await self._send(DECISIONS.name, decision, decision.key)
        except BadRecord as error:
            # Only a prompt of a million tokens makes such a record. Its sender learns of it; nothing is booked.
            self._unacked.pop(Attempt(decision.key, decision.attempt), None)
            await refuse(
                self._service, expanded, Refused(413, f"the prompt is too long to be routed: {error}", code=error.code),
                stage=STAGE, attempt=decision.attempt,
            )  # fmt: skip
            raise
        self._unacked.pop(Attempt(decision.key, decision.attempt), None)

    def _before(self, decision: Decision) -> Standing | None:
        """The attempt before this one, if there was one."""
        state = self._state.requests.get(decision.key)
        return None if state is None else state.attempts.get(decision.attempt - 1)

    def _still_ours(self, decision: Decision) -> bool:
        """Whether what was decided still counts: another router's may have been read before it, or its end."""
        state = self._state.requests.get(decision.key)
        standing = state.attempts.get(decision.attempt) if state is not None else None
        return standing is not None and standing.life == life_of(decision)

    async def _send_work(self, expanded: Expanded, decision: Decision) -> None:
        worker = self._state.fleet.workers.get(decision.worker_id or "")
        work = work_of(expanded, decision, None if worker is None else worker.contract)
        try:
            await self._send(work_topic(work.worker_id), work, work.key)
        except BadRecord as error:
            # The worker's topic is gone or refuses the record: another worker may do better.
            await self.state_fact(
                self.failure(
                    decision, code=error.code, detail=str(error)[:500], status=503, before_output=True, retryable=True
                )
            )

    async def _send(self, topic: str, message: Message, key: str) -> None:
        await self._service.sender.send(topic, message, key=key)

    def _tell(self, decision: Decision) -> None:
        ROUTER_DECISIONS.labels(decision.outcome.value, decision.mode.value).inc()
        ROUTER_PROMPT_BLOCKS.inc(decision.total_blocks)
        ROUTER_OVERLAP_BLOCKS.inc(decision.overlap_confirmed)
        encoded = decision.candidates[0].encoder_tokens if decision.candidates else 0
        ROUTER_ENCODER_TOKENS.inc(encoded)
        self._service.log.info(
            decision.outcome.value,
            request_id=decision.request_id,
            tenant=decision.tenant,
            attempt=decision.attempt,
            model=decision.model,
            worker_id=decision.worker_id,
            dp_rank=decision.dp_rank,
            overlap_blocks=decision.overlap_confirmed,
            overlap_predicted=decision.overlap_predicted,
            encoder_tokens=encoded,
            total_blocks=decision.total_blocks,
            mode=decision.mode.value,
            reason=decision.reason.value if decision.reason is not None else None,
        )


def refusal_of(decision: Decision, before: Standing | None = None) -> Refused:
    """The answer to a request no worker could be found for; after a failed attempt, with what failed there."""
    if decision.outcome is Outcome.ALL_BUSY:
        return Refused(
            429, f"all workers of model {decision.model} are busy, try again later",
            type="rate_limit_error", code="all_busy",
        )  # fmt: skip
    none = f"no worker is ready for model {decision.model}"
    if before is None or before.end is None or before.end.event is LifecycleEvent.REFUSED:
        return Refused(503, none, type="service_unavailable_error", code="no_worker")
    code = before.end.code or "worker_failed"
    detail = what_failed(before.decision, code, before.end)
    return Refused(final_status(before.end), detail, type="server_error", code=code)


def what_failed(decision: Decision, code: str, end: Lifecycle | None) -> str:
    """An attempt's failure for whoever waits, who is left with it: no worker is there that could do better.

    It begins with what kvroute itself found wrong with a medium: an engine that fetches stumbles over the same.
    """
    why = f"{code}: {end.detail}" if end is not None and end.detail else code
    failed = f"attempt {decision.attempt} on worker {decision.worker_id} failed and there is no other ({why})"
    return (_wrong_medium(decision) + failed)[:500]


def _wrong_medium(decision: Decision) -> str:
    if decision.reason not in OF_THE_MEDIUM:
        return ""
    found = next(((number, one) for number, one in enumerate(decision.media) if one.reason is decision.reason), None)
    which = f"{found[1].kind.value} {found[0]}: " if found is not None else ""
    detail = f" ({decision.detail})" if decision.detail else ""
    return f"{which}{decision.reason.value}{detail}; "
