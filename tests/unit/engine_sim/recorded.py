"""Recordings of a running vLLM 0.32 and how to compare with them: everything but hash values and times.

Hashes, and identifiers of media that nobody named (64 hexadecimal digits), are opaque: each side's own are renamed in
order of first appearance, so that equal means the same ones at the same places.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

GOLDEN = Path(__file__).parents[2] / "golden" / "vllm_events"
_UNNAMED = re.compile(r"[0-9a-f]{64}")


def recording(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return loaded


def payloads(case: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(batch["payload_hex"]) for batch in case["kv_batches"]]


class Renamed:
    """One side's events with its opaque names replaced by their order of appearance."""

    def __init__(self) -> None:
        self._hashes: dict[Any, int] = {}
        self._identifiers: dict[str, str] = {}

    def batch(self, payload: bytes) -> tuple[list[dict[str, Any]], int]:
        """The events of a batch and its rank."""
        _, events, rank = msgspec.msgpack.decode(payload)
        return [self._event(event) for event in events], rank

    def identifier(self, found: str) -> str:
        """An identifier that somebody gave stays as it is."""
        return self._identifiers.setdefault(found, f"medium {len(self._identifiers)}") if _unnamed(found) else found

    def original(self, renamed: str) -> str:
        """This side's identifier behind a new name."""
        return next((found for found, name in self._identifiers.items() if name == renamed), renamed)

    def _hash(self, found: Any) -> int | None:
        return None if found is None else self._hashes.setdefault(found, len(self._hashes))

    def _event(self, event: dict[str, Any]) -> dict[str, Any]:
        renamed = dict(event)
        if "block_hashes" in event:
            renamed["block_hashes"] = [self._hash(found) for found in event["block_hashes"]]
        if "parent_block_hash" in event:
            renamed["parent_block_hash"] = self._hash(event["parent_block_hash"])
        if event.get("extra_keys"):
            renamed["extra_keys"] = [self._keys(keys) for keys in event["extra_keys"]]
        return renamed

    def _keys(self, keys: list[Any] | None) -> list[Any] | None:
        return None if keys is None else [[self.identifier(k[0]), k[1]] if isinstance(k, list) else k for k in keys]


def _unnamed(identifier: str) -> bool:
    return _UNNAMED.fullmatch(identifier) is not None
