"""The workers as Kafka tells of them: registrations, leases, reported load. Pure: time comes as monotonic seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.decision import Position
from schemas.worker import Heartbeat, Worker, WorkerState
from services.router.slots import Slot, SlotEpoch

SETTLE_HEARTBEATS = 1.5
"""Who was not heard for so many heartbeats' time after the start is not there."""


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of a registered worker, in its present epoch."""

    life: SlotEpoch
    slot: Slot
    worker: Worker
    loras: frozenset[str]


@dataclass(slots=True)
class SlotState:
    """What the last heartbeat said, and how long it counts."""

    epoch: int
    leased_until: float
    healthy: bool
    reported: dict[str, float] = field(default_factory=dict)
    snapshot: Position | None = None
    encoder: frozenset[int] = frozenset()
    """Media whose encoder outputs the slot holds, by identity."""


class Fleet:
    """Registrations and leases. A lease runs by the reader's own clock, never by a time in a record."""

    def __init__(self, *, lease_seconds: float, heartbeat_seconds: float, started: float) -> None:
        """``started``: when this reader began to listen; nobody's lease has run out before one lease after that."""
        self._lease_seconds = lease_seconds
        self._settle_seconds = min(lease_seconds, SETTLE_HEARTBEATS * heartbeat_seconds)
        self._started = started
        self._heard = started
        self.workers: dict[str, Worker] = {}
        self.states: dict[Slot, SlotState] = {}
        self._members: dict[str, list[Member]] | None = None

    def begin(self, now: float) -> None:
        """Listen as from now: everybody gets a whole lease's time to be heard."""
        self._started = self._heard = now

    def quiet(self, now: float) -> bool:
        """Whether nobody at all was heard for half a lease, though somebody should be."""
        return bool(self.workers) and now - self._heard > self._lease_seconds / 2

    def register(self, worker: Worker) -> list[SlotEpoch]:
        """Take a registration; one of an older epoch changes nothing. Returns the lives that ended by it."""
        known = self.workers.get(worker.worker_id)
        if known is not None and worker.epoch < known.epoch:
            return []
        ended: list[SlotEpoch] = []
        if known is not None and (worker.epoch > known.epoch or worker.state is WorkerState.RETIRED):
            ended = list(_lives(known))
        self.workers[worker.worker_id] = worker
        self._members = None
        return ended

    def forget(self, worker_id: str) -> list[SlotEpoch]:
        """The registration was deleted. Returns the lives that ended by it."""
        known = self.workers.pop(worker_id, None)
        self._members = None
        return list(_lives(known)) if known is not None else []

    def heartbeat(self, beat: Heartbeat, now: float, *, fresh: bool = True) -> None:
        """Take a heartbeat. One that was there before this reader started is not ``fresh`` and grants no lease."""
        slot = Slot(beat.worker_id, beat.dp_rank)
        self._heard = now
        known = self.states.get(slot)
        if known is not None and beat.epoch < known.epoch:
            return
        load = beat.load
        self.states[slot] = SlotState(
            epoch=beat.epoch,
            leased_until=now + self._lease_seconds if fresh else float("-inf"),
            healthy=beat.healthy,
            reported={"running": load.running, "waiting": load.waiting, "kv_usage": load.kv_usage},
            snapshot=beat.snapshot,
            encoder=frozenset(beat.encoder),
        )

    def lives(self) -> Iterator[tuple[SlotEpoch, Worker]]:
        """Every rank of every worker that is not retired."""
        for worker in self.workers.values():
            if worker.state is not WorkerState.RETIRED:
                for life in _lives(worker):
                    yield life, worker

    def members(self, model: str) -> list[Member]:
        """Every rank of every worker of a model that is not retired."""
        if self._members is None:
            self._members = {}
            for life, worker in self.lives():
                member = Member(life, life.slot, worker, frozenset(worker.loras))
                self._members.setdefault(worker.model, []).append(member)
        return self._members.get(model, [])

    def state(self, life: SlotEpoch) -> SlotState | None:
        """The last heartbeat of exactly this life."""
        state = self.states.get(life.slot)
        return state if state is not None and state.epoch == life.epoch else None

    def leased(self, life: SlotEpoch, now: float) -> bool:
        """Whether the slot may be given work."""
        state = self.state(life)
        return state is not None and now < state.leased_until

    def ended(self, life: SlotEpoch, now: float) -> bool:
        """Whether this life is over: replaced, retired, or silent for longer than a lease."""
        worker = self.workers.get(life.worker_id)
        if worker is not None and (worker.epoch > life.epoch or worker.state is WorkerState.RETIRED):
            return True
        return not self.leased(life, now) and now >= self._started + self._lease_seconds

    def settled(self, now: float) -> bool:
        """Whether every live slot was heard, or had the time to be: before that, silence means nothing."""
        if now >= self._started + self._settle_seconds:
            return True
        return all(self.leased(life, now) for life, worker in self.lives() if worker.state is WorkerState.LIVE)

    def snapshot_offsets(self) -> dict[int, int]:
        """By partition of ``kv-events``: the lowest offset at which a live slot's latest snapshot starts."""
        lowest: dict[int, int] = {}
        for life, _ in self.lives():
            state = self.state(life)
            if state is not None and (at := state.snapshot) is not None:
                lowest[at.partition] = min(at.offset, lowest.get(at.partition, at.offset))
        return lowest

    def overdue(self, now: float, seconds: float) -> list[Slot]:
        """Slots not heard for so long: what is known of their caches is not worth its memory."""
        return [slot for slot, s in self.states.items() if max(s.leased_until, self._started) + seconds < now]


def _lives(worker: Worker) -> Iterator[SlotEpoch]:
    return (SlotEpoch(worker.worker_id, rank, worker.epoch) for rank in range(worker.dp_size))
