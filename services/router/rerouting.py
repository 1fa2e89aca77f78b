"""Attempts that came to nothing: routed again, given up, or at least stated, by the owner of their partition."""

from __future__ import annotations

from contextlib import suppress

from schemas.decision import Decision
from schemas.expanded import Expanded
from schemas.lifecycle import Lifecycle
from schemas.work import LOST_INDEX
from services.router.again import Next, Step, next_step
from services.router.following import read
from services.router.key_locks import KeyLocks
from services.router.requests import RequestState
from services.router.routing import STAGE, Routing, what_failed
from services.router.slots import SlotEpoch
from services.router.state import RouterState
from services.runtime.errors import BadRecord, Refused, Transient
from services.runtime.metrics import ROUTER_ATTEMPTS_FAILED
from services.runtime.refusal import cancelled, error_response, refuse
from services.runtime.service import Service


class Rerouting:
    """Watches the requests of the owned partitions. Everything here can be done twice without harm."""

    def __init__(self, service: Service, state: RouterState, routing: Routing, locks: KeyLocks) -> None:
        self._service = service
        self._state = state
        self._routing = routing
        self._locks = locks
        self._at_work: set[str] = set()
        self._unsent: set[str] = set()
        self._looked_meanwhile: set[str] = set()
        self.owned: set[int] = set()
        """Partitions of ``expanded`` that are this replica's, past their gate."""

    def look(self, key: str) -> None:
        """Something happened to a request: start what has to be done, if anything and if it is ours."""
        state = self._state.requests.get(key)
        if state is None or state.expanded.partition not in self.owned:
            return
        if key in self._at_work:
            # It may be the next attempt's own end, come back before we were done with sending it.
            self._looked_meanwhile.add(key)
            return
        if self._next(state).step is not Step.WAIT:
            self._start(key)

    def resend(self, key: str) -> None:
        """Our decision lost. Whoever made the one that counts may have died before its work was sent: send it."""
        state = self._state.requests.get(key)
        if state is None or state.expanded.partition not in self.owned:
            return
        if key in self._at_work:
            self._unsent.add(key)
        else:
            self._start(key)

    def pending(self, state: RequestState) -> bool:
        """Whether the last attempt came to nothing and something is to be done about it."""
        return self._next(state).step is not Step.WAIT

    def look_at_life(self, life: SlotEpoch) -> None:
        """A slot's life ended: look at all that was sent there."""
        for key in self._state.requests.on_life(life):
            self.look(key)

    def look_at_all(self) -> None:
        """Look at lives that ended without a record saying so, their leases having run out, and at what failed here."""
        unsent, self._unsent = self._unsent, set()
        for key in unsent - self._at_work:
            self._start(key)
        now = self._service.clock.monotonic()
        for life in self._state.requests.lives():
            if self._state.fleet.ended(life, now):
                self.look_at_life(life)

    def take_over(self, partitions: frozenset[int]) -> None:
        """Partitions are ours now: pick up what their former owner left open."""
        self.owned |= partitions
        for state in self._state.requests.of_partitions(partitions):
            # The work of a first attempt comes again with its record, which was not committed. Nobody but us sends
            # that of a later one: if its owner died between decision and work, this is what the agent is waiting for.
            waits = self._next(state).step is Step.WAIT
            if waits and state.last > 1 and not state.standing.started and state.standing.end is None:
                self._start(state.key)
            else:
                self.look(state.key)

    def _next(self, state: RequestState) -> Next:
        clock = self._service.clock
        now = clock.monotonic()
        return next_step(
            state,
            ended=lambda life: self._state.fleet.ended(life, now),
            max_attempts=self._service.settings.router_max_attempts,
            now_ms=clock.now_ms(),
        )

    def _start(self, key: str) -> None:
        self._at_work.add(key)
        self._service.spawn(self._work(key), name=f"again {key}")

    async def _work(self, key: str) -> None:
        try:
            async with self._locks.hold(key):
                state = self._state.requests.get(key)
                if state is not None and state.expanded.partition in self.owned:
                    await self._do(state, self._next(state))
        except Transient as error:
            self._unsent.add(key)
            self._service.log.warning("attempt waits for the broker", key=key, error=str(error))
        finally:
            self._at_work.discard(key)
            if key in self._looked_meanwhile:
                self._looked_meanwhile.discard(key)
                self.look(key)

    async def _do(self, state: RequestState, next_: Next) -> None:
        standing, decision = state.standing, state.standing.decision
        if next_.step is Step.WAIT and (standing.started or standing.end is not None):
            return
        if next_.step is not Step.WAIT:
            ROUTER_ATTEMPTS_FAILED.labels(next_.step.value, next_.cause).inc()
            self._service.log.warning(
                "attempt failed", request_id=decision.request_id, attempt=decision.attempt,
                worker_id=decision.worker_id, cause=next_.cause, code=next_.code, next=next_.step.value,
            )  # fmt: skip
        if next_.step is Step.STATE_LOSS:
            await self._end_answer(decision, next_)
            await self._state_loss(decision, next_, before_output=False)
            return
        if next_.step is Step.GIVE_UP:
            await self._give_up(decision, next_, standing.end)
            return
        if next_.step is Step.ROUTE_AGAIN and standing.end is None:
            await self._state_loss(decision, next_, before_output=True)
            await self._routing.cancel(decision)
        if self._service.cancellations.is_cancelled(state.key):
            await refuse(self._service, decision, cancelled(), stage=STAGE, attempt=decision.attempt)
            return
        expanded = await self._read_again(state)
        if expanded is None:
            gone = Next(Step.GIVE_UP, next_.cause, 502, "record_gone")
            await self._give_up(decision, gone, None)
        elif next_.step is Step.WAIT:
            await self._routing.resume(expanded, decision)
        else:
            await self._routing.route(expanded, state.expanded, attempt=state.last + 1, excluded=state.tried)

    async def _end_answer(self, decision: Decision, next_: Next) -> None:
        """Whoever reads the answer learns that it goes no further."""
        if decision.reply_to is None:
            return
        detail = f"worker {decision.worker_id} was lost while it answered"
        refused = Refused(next_.status, detail, type="server_error", code=next_.code)
        last = error_response(decision, refused, decision.attempt).model_copy(
            update={
                "worker_id": decision.worker_id, "dp_rank": decision.dp_rank, "epoch": decision.epoch,
                "index": LOST_INDEX,
            }
        )  # fmt: skip
        with suppress(BadRecord):  # the topic is gone: nobody reads
            await self._service.sender.send(decision.reply_to, last, key=decision.key)

    async def _state_loss(self, decision: Decision, next_: Next, *, before_output: bool) -> None:
        detail = f"worker {decision.worker_id} epoch {decision.epoch} ended while the request was there"
        await self._routing.state_fact(
            self._routing.failure(
                decision,
                code=next_.code,
                detail=detail,
                status=next_.status,
                before_output=before_output,
                retryable=before_output,
            )
        )

    async def _give_up(self, decision: Decision, next_: Next, end: Lifecycle | None) -> None:
        detail = what_failed(decision, next_.code, end)
        if decision.reply_to is not None:
            refused = Refused(next_.status, detail, type="server_error", code=next_.code)
            answer = error_response(decision, refused, decision.attempt)
            await self._service.sender.send(decision.reply_to, answer, key=decision.key)
        await self._routing.state_fact(
            self._routing.failure(
                decision, code=next_.code, detail=detail, status=next_.status, before_output=True, retryable=False
            )
        )

    async def _read_again(self, state: RequestState) -> Expanded | None:
        """The expanded record, None when it is gone or no longer what it was."""
        record = await self._service.read_at(state.expanded)
        try:
            expanded = read(Expanded, record) if record is not None else None
        except BadRecord:
            return None
        # A topic that was made anew has other requests at the old positions.
        return expanded if expanded is not None and expanded.key == state.key else None
