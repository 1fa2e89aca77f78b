"""Decisions, facts and registrations as stages publish them, with what a test cares about set."""

from __future__ import annotations

from typing import Any

from schemas.decision import Candidate, Decision, DecisionMedia, Mode, Outcome, Position, RestOfCandidates
from schemas.lifecycle import Lifecycle, LifecycleEvent, Usage
from schemas.media import IdentitySource, MediaKind
from schemas.types import Message
from schemas.worker import Contract, Limits, ModalityContract, Worker
from services.runtime.bus import Record
from services.runtime.topics import DECISIONS

NOON_MS = 1_767_225_600_000 + 12 * 3_600_000
"""2026-01-01T12:00:00Z."""


def candidate(worker_id: str, overlap: int = 0, **terms: Any) -> Candidate:
    """A slot with ``overlap`` blocks on its device."""
    values: dict[str, Any] = {"epoch": NOON_MS, "overlap_device": overlap, "overlap_predicted": overlap}
    return Candidate(**({"worker_id": worker_id, **values} | terms))


def image(identity: int = 0xAB, **known: Any) -> DecisionMedia:
    """An identified image."""
    values: dict[str, Any] = {
        "kind": MediaKind.IMAGE, "identity": identity, "source": IdentitySource.URL, "forwarded": True, "width": 640,
        "height": 480, "tokens": 300, "offset": 12, "host": "example.com", "path": "/a.png", "url_hash": 7,
    }  # fmt: skip
    return DecisionMedia(**(values | known))


def decision(request_id: str = "r1", attempt: int = 1, **known: Any) -> Decision:
    """A routed decision: 8 blocks of 16, worker w1 holds 3 of them, w2 none."""
    values: dict[str, Any] = {
        "request_id": request_id, "attempt": attempt, "outcome": Outcome.ROUTED, "model": "qwen3-vl",
        "created_at_ms": NOON_MS, "deadline_ms": NOON_MS + 120_000, "worker_id": "w1", "epoch": NOON_MS,
        "mode": Mode.EXACT, "block_size": 16, "prompt_tokens": 130, "exact_tokens": 130, "total_blocks": 8,
        "overlap_confirmed": 3, "overlap_predicted": 3, "usable_blocks": 3, "predicted_tokens": 48,
        "addresses": [0x1122334455667788, 1], "rest": RestOfCandidates(), "ties": 1, "margin": 3.0,
        "candidates": [
            candidate("w1", 3, prefill_cost=5.125, cost=5.125), candidate("w2", prefill_cost=8.125, cost=8.125),
        ],
        "seed": 0xFEED, "policy": "kv", "policy_version": "1", "parameters": {"overlap_credit": 1.0},
        "now_ms": NOON_MS + 5,
        "expanded": Position(topic="kvroute.expanded.v1", partition=3, offset=17), "router": "router-1",
        "projection": [Position(topic="kvroute.kv-events.v1", partition=0, offset=99)], "timings_ms": {"media": 1.5},
    }  # fmt: skip
    return Decision(**(values | known))


def fact(event: LifecycleEvent, request_id: str = "r1", attempt: int = 1, after_ms: int = 0, **known: Any) -> Lifecycle:
    """A fact ``after_ms`` after the request was made."""
    values: dict[str, Any] = {
        "request_id": request_id, "attempt": attempt, "event": event, "created_at_ms": NOON_MS,
        "at_ms": NOON_MS + after_ms, "stage": "media" if attempt == 0 else "agent",
    }  # fmt: skip
    if attempt:
        values |= {"worker_id": "w1", "epoch": NOON_MS}
    return Lifecycle(**(values | known))


def finished(
    request_id: str = "r1", attempt: int = 1, after_ms: int = 900, cached: int = 48, **known: Any
) -> Lifecycle:
    """The end of an attempt whose engine found ``cached`` tokens."""
    counted = {"usage": Usage(prompt_tokens=130, completion_tokens=20, cached_tokens=cached)}
    return fact(LifecycleEvent.FINISHED, request_id, attempt, after_ms, **(counted | known))


def worker(worker_id: str = "w1", epoch: int = NOON_MS, **known: Any) -> Worker:
    """A live registration with text and image proven."""
    values: dict[str, Any] = {
        "worker_id": worker_id, "epoch": epoch, "model": "qwen3-vl", "block_size": 16, "at_ms": epoch + 1,
        "contract": Contract(
            model="qwen3-vl", text=ModalityContract(proven=True, variant="qwen3_vl"),
            image=ModalityContract(proven=True, variant="qwen3_vl", verbatim_identity=True, max_pixels=1 << 40),
        ),
        "limits": Limits(max_concurrency=8, max_model_len=32_768, num_blocks=1_000),
    }  # fmt: skip
    return Worker(**(values | known))


def record_of(message: Message, topic: str = DECISIONS.name, partition: int = 0, offset: int = 0) -> Record:
    """The message as a record."""
    key = str(getattr(message, "key", getattr(message, "worker_id", "")))
    return Record(topic, partition, offset, NOON_MS, key.encode(), message.to_bytes())


def dead_letter(offset: int = 0, **headers: str) -> Record:
    """A dead letter of record ``offset`` of ``requests``, partition 4."""
    values = {
        "dlq-topic": "kvroute.requests.v1", "dlq-partition": "4", "dlq-offset": str(offset),
        "dlq-timestamp-ms": str(NOON_MS), "dlq-stage": "media", "dlq-code": "invalid_message",
        "dlq-message": "expected JSON, found '<'",
    } | {name.replace("_", "-"): value for name, value in headers.items()}  # fmt: skip
    carried = tuple((name, value.encode()) for name, value in values.items())
    return Record("kvroute.dead-letters.v1", 1, offset, NOON_MS + 1000, b"/r1", b"<html>", carried)
