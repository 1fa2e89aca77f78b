"""All slots of a model as they stand for one prompt: fleet, index, predictions and ledger put together. Pure."""

from __future__ import annotations

from schemas.expanded import Expanded
from schemas.worker import WorkerState
from services.router.deciding import prompt_of
from services.router.fleet import Fleet
from services.router.kv_projection import NOTHING_HELD, CacheMatch, KvProjection
from services.router.ledger import Ledger
from services.router.predicted import Predicted
from services.router.situation import SlotView
from services.router.slots import SlotEpoch

NOTHING_ENCODED: frozenset[int] = frozenset()


class Surroundings:
    """Everything the router knows, from which the views of a prompt are taken."""

    def __init__(self, fleet: Fleet, kv: KvProjection, predicted: Predicted, ledger: Ledger, *, batch: int) -> None:
        """``batch``: requests a worker may have beyond its own concurrency, so that it never runs dry."""
        self.fleet = fleet
        self.kv = kv
        self.predicted = predicted
        self.ledger = ledger
        self._batch = batch

    def views(self, expanded: Expanded, now: float, now_ms: int) -> list[SlotView]:
        """The slots that serve the request's model. ``now`` is monotonic seconds, ``now_ms`` wall milliseconds."""
        self.predicted.expire(now_ms)
        self.ledger.expire(now_ms)
        model = expanded.model
        matches: dict[int, CacheMatch] = {}
        predicted: dict[int, dict[SlotEpoch, int]] = {}
        active: dict[int, dict[SlotEpoch, int]] = {}
        for size, addresses in expanded.addresses.items():
            matches[size] = self.kv.match(model, size, addresses)
            predicted[size] = self.predicted.match((model, size), addresses)
            active[size] = self.ledger.active((model, size), addresses)
        members = self.fleet.members(model)
        loads = [self.ledger.load(member.life) for member in members]
        requests: dict[str, int] = {}
        for member, load in zip(members, loads, strict=True):
            name = member.life.worker_id
            requests[name] = requests.get(name, 0) + load.requests
        states = self.fleet.states
        identities = prompt_of(expanded).identities if expanded.spans else frozenset()
        views = []
        for member, load in zip(members, loads, strict=True):
            life, worker = member.life, member.worker
            size = worker.block_size
            state = states.get(member.slot)
            if state is not None and state.epoch != life.epoch:
                state = None
            held = matches[size].of(member.slot, life.epoch) if size in matches else NOTHING_HELD
            views.append(
                SlotView(
                    life=life,
                    model=model,
                    block_size=size,
                    loras=member.loras,
                    leased=state is not None and now < state.leased_until,
                    healthy=state is not None and state.healthy,
                    live=worker.state is WorkerState.LIVE,
                    capacity=worker.limits.max_concurrency + self._batch,
                    worker_requests=requests[life.worker_id],
                    reported=state.reported if state is not None else {},
                    overlap=held.overlap,
                    overlap_predicted=predicted[size].get(life, 0) if size in predicted else 0,
                    encoder=identities & state.encoder if identities and state is not None else NOTHING_ENCODED,
                    uncertain=held.uncertain,
                    upper_bound=held.upper_bound,
                    active_prefill_tokens=load.prefill_tokens,
                    active_decode_blocks=load.blocks,
                    active_requests=load.requests,
                    active_prefix_blocks=active[size].get(life, 0) if size in active else 0,
                )
            )
        return views
