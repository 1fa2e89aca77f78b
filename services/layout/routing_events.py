"""Tells operators, once per change, whether videos of a model are routed exactly, and why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from services.layout.contract import Proof


class Log(Protocol):
    """The part of a structured logger that is used."""

    def info(self, event: str, **fields: Any) -> Any:
        """Log an event."""
        ...


class VideoRouting:
    """Remembers what was said of each model."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._said: dict[str, str | None] = {}

    def update(self, proofs: Mapping[str, Proof]) -> None:
        """Say ``exact video routing enabled`` or ``disabled`` of each model of which that, or the reason, changed."""
        for model, proof in proofs.items():
            reason = None if proof.video is None else proof.video[0].value
            if model in self._said and self._said[model] == reason:
                continue
            if proof.video is None:
                self._log.info("exact video routing enabled", model=model)
            else:
                self._log.info("exact video routing disabled", model=model, reason=reason, detail=proof.video[1])
            self._said[model] = reason
        for gone in self._said.keys() - proofs.keys():
            del self._said[gone]
