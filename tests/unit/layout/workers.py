"""Registrations as agents write them."""

from __future__ import annotations

from typing import Any

from schemas.worker import Contract, ModalityContract, Worker


def proven(variant: str = "qwen2_5_vl", **fields: Any) -> ModalityContract:
    return ModalityContract(proven=True, variant=variant, **fields)


def contract(model: str = "qwen", **modalities: ModalityContract) -> Contract:
    return Contract(model=model, **{"text": proven(), "image": proven(), **modalities})


def worker(name: str = "w1", model: str = "qwen", **fields: Any) -> Worker:
    if "contract" not in fields:
        fields["contract"] = contract(model)
    return Worker(worker_id=name, epoch=1, model=model, at_ms=0, **{"block_size": 16, **fields})
