"""The workers as the gateway must know them: which models there are, and whose life is over. Pure."""

from __future__ import annotations

from schemas.worker import Heartbeat, Worker, WorkerState
from services.gateway.binding import Source

QUIET_LEASES = 3
"""A worker is given up after so many leases while no worker is heard."""

LISTED_LEASES = 5
"""A model is listed for so many leases after its last worker was heard."""


class Fleet:
    """Registrations and when workers were heard, by this process's clock (monotonic seconds)."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease = lease_seconds
        self._workers: dict[str, Worker] = {}
        self._heard: dict[str, tuple[int, float]] = {}
        self._last_heard = float("-inf")

    def register(self, worker: Worker) -> None:
        """Take a registration; one of an older epoch changes nothing."""
        known = self._workers.get(worker.worker_id)
        if known is None or worker.epoch >= known.epoch:
            self._workers[worker.worker_id] = worker

    def forget(self, worker_id: str) -> None:
        """The registration was deleted."""
        self._workers.pop(worker_id, None)
        self._heard.pop(worker_id, None)

    def heartbeat(self, beat: Heartbeat, now: float) -> None:
        """Take a heartbeat of any rank; one of an older epoch changes nothing."""
        self._last_heard = now
        epoch, _ = self._heard.get(beat.worker_id, (beat.epoch, 0.0))
        if beat.epoch >= epoch:
            self._heard[beat.worker_id] = (beat.epoch, now)

    def ended(self, source: Source, last_piece: float, now: float) -> bool:
        """Whether a source's life is over: replaced, retired, or silent for a lease. Its pieces are signs of life."""
        if source.worker_id is None or source.epoch is None:
            return False
        worker = self._workers.get(source.worker_id)
        if worker is not None and worker.epoch > source.epoch:
            return True
        if worker is not None and worker.epoch == source.epoch and worker.state is WorkerState.RETIRED:
            return True
        epoch, heard = self._heard.get(source.worker_id, (source.epoch, 0.0))
        if epoch > source.epoch:
            return True
        # While nobody at all is heard it may be us who hear nothing: then silence means less.
        quiet = now - self._last_heard > self._lease / 2
        return now - max(heard, last_piece) > self._lease * (QUIET_LEASES if quiet else 1)

    def models(self, now: float) -> dict[str, tuple[str | None, int]]:
        """Served names: (base model of a LoRA adapter or None, wall milliseconds of its first registration)."""
        listed: dict[str, tuple[str | None, int]] = {}
        for worker in self._workers.values():
            _, heard = self._heard.get(worker.worker_id, (0, float("-inf")))
            if worker.state is WorkerState.RETIRED or now - heard > self._lease * LISTED_LEASES:
                continue
            for name, base in ((worker.model, None), *((lora, worker.model) for lora in worker.loras)):
                _, since = listed.get(name, (base, worker.at_ms))
                listed[name] = (base, min(since, worker.at_ms))
        return dict(sorted(listed.items()))
