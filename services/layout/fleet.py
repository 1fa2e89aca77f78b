"""The workers as the layout needs them: which models and adapters live, at which block sizes, with which contracts."""

from __future__ import annotations

from schemas.worker import Worker, WorkerState


class Fleet:
    """The newest registration of every worker. Fed in order by a projection of ``workers``."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}

    def register(self, worker: Worker) -> None:
        """Take a registration."""
        self._workers[worker.worker_id] = worker

    def forget(self, worker_id: str) -> None:
        """Take a tombstone."""
        self._workers.pop(worker_id, None)

    def serves(self, model: str) -> bool:
        """Whether a worker that is not retired serves the model."""
        return any(
            worker.model == model and worker.state is not WorkerState.RETIRED for worker in self._workers.values()
        )

    def resolve(self, name: str) -> tuple[str, str | None]:
        """Model and LoRA adapter of a served name: an adapter's name stands for its base model with the adapter."""
        if not self.serves(name):
            for worker in self._workers.values():
                if name in worker.loras and worker.state is not WorkerState.RETIRED:
                    return worker.model, name
        return name, None

    def live(self, model: str) -> list[Worker]:
        """Workers of a model that take requests, by id."""
        found = [w for w in self._workers.values() if w.model == model and w.state is WorkerState.LIVE]
        return sorted(found, key=lambda worker: worker.worker_id)

    def models(self) -> list[str]:
        """All models of workers that are not retired."""
        return sorted({w.model for w in self._workers.values() if w.state is not WorkerState.RETIRED})
