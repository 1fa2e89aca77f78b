"""Tells operators, once per change, whether videos of a model are routed exactly, and why not."""

from __future__ import annotations

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

    def note(self, model: str, proof: Proof | None) -> None:
        """Say ``exact video routing enabled`` or ``disabled`` if that, or the reason, changed; None: the model left."""
        if proof is None:
            self._said.pop(model, None)
            return
        reason = None if proof.video is None else proof.video[0].value
        if model in self._said and self._said[model] == reason:
            return
        self._said[model] = reason
        if proof.video is None:
            self._log.info("exact video routing enabled", model=model)
        else:
            self._log.info("exact video routing disabled", model=model, reason=reason, detail=proof.video[1])
