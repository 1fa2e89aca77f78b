"""Whose adapter a LoRA name is: videos of an adapter are sampled as its model's. Fed by a projection of ``workers``."""

from __future__ import annotations

from pydantic import ValidationError

from schemas.worker import Worker
from services.runtime.bus import Record
from services.runtime.errors import BadRecord


class Adapters:
    """Adapters of the newest registration of every worker."""

    def __init__(self) -> None:
        self._by_worker: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._base_of: dict[str, str] = {}

    def take(self, record: Record) -> None:
        """One registration or tombstone. Raises BadRecord."""
        worker_id = (record.key or b"").decode("utf-8", "replace")
        if record.value is None:
            self._by_worker.pop(worker_id, None)
        else:
            try:
                worker = Worker.from_bytes(record.value)
            except (ValidationError, ValueError) as error:
                raise BadRecord("invalid_message", f"not a {Worker.SCHEMA}: {type(error).__name__}") from None
            self._by_worker[worker_id] = worker.model, tuple(worker.loras)
        served = self._by_worker.values()
        self._base_of = {adapter: model for model, adapters in served for adapter in adapters}
        for model, _ in served:
            self._base_of.pop(model, None)

    def model_of(self, name: str) -> str:
        """The model a served name stands for: itself, unless it is an adapter's."""
        return self._base_of.get(name, name)
