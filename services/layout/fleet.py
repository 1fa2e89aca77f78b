"""The workers as the layout needs them: which models and adapters live, at which block sizes, with which contracts."""

from __future__ import annotations

from schemas.worker import Worker, WorkerState
from services.layout.contract import Proof, proof_of


class Fleet:
    """The newest registration of every worker, by model. Fed in order by a projection of ``workers``.

    Reading is cheap, repeated for every request and allowed from any thread; registering is rare and done by one.
    """

    def __init__(self, *, require_contract: bool = True) -> None:
        self._require_contract = require_contract
        self._workers: dict[str, Worker] = {}
        self._serving: dict[str, tuple[Worker, ...]] = {}
        self._adapters: dict[str, str] = {}
        self._proofs: dict[tuple[str, str, str | None], Proof] = {}

    def register(self, worker: Worker) -> set[str]:
        """Take a registration; one of an older epoch changes nothing. The models it may have changed."""
        before = self._workers.get(worker.worker_id)
        if before is not None and worker.epoch < before.epoch:
            return set()
        self._workers[worker.worker_id] = worker
        return self._sort({worker.model} if before is None else {worker.model, before.model})

    def forget(self, worker_id: str) -> set[str]:
        """Take a tombstone. The models it may have changed."""
        gone = self._workers.pop(worker_id, None)
        return set() if gone is None else self._sort({gone.model})

    def serves(self, model: str) -> bool:
        """Whether a worker that is not retired serves the model."""
        return model in self._serving

    def resolve(self, name: str) -> tuple[str, str | None]:
        """Model and LoRA adapter of a served name: an adapter's name stands for its base model with the adapter."""
        if name not in self._serving and name in self._adapters:
            return self._adapters[name], name
        return name, None

    def live(self, model: str) -> list[Worker]:
        """Workers of a model that take requests, by id."""
        return [worker for worker in self._serving.get(model, ()) if worker.state is WorkerState.LIVE]

    def block_sizes(self, model: str) -> set[int]:
        """Block sizes of the model's live workers."""
        return {worker.block_size for worker in self.live(model)}

    def proof(self, model: str, variant: str, sampling: str | None = None) -> Proof:
        """What the model's live workers have proven of a layout, and of how we take frames of its videos."""
        proofs = self._proofs  # held: a change meanwhile puts a new one in its place, and this answer is not kept there
        known = proofs.get((model, variant, sampling))
        if known is None:
            known = proofs[model, variant, sampling] = proof_of(
                self.live(model), variant, sampling=sampling, required=self._require_contract
            )
        return known

    def _sort(self, models: set[str]) -> set[str]:
        for model in models:
            serving = [
                worker
                for _, worker in sorted(self._workers.items())
                if worker.model == model and worker.state is not WorkerState.RETIRED
            ]
            if serving:
                self._serving[model] = tuple(serving)
            else:
                self._serving.pop(model, None)
        served = [worker for workers in self._serving.values() for worker in workers]
        self._adapters = {adapter: worker.model for worker in served for adapter in worker.loras}
        kept = self._serving.keys() - models
        self._proofs = {asked: proof for asked, proof in list(self._proofs.items()) if asked[0] in kept}
        return models
