"""Records of Kafka as rows of SQL. Pure: a message in, plain dictionaries out, every column of a table named."""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from datetime import datetime

from schemas.decision import Candidate, Decision, DecisionMedia, Outcome
from schemas.lifecycle import Lifecycle, LifecycleEvent
from schemas.types import Part
from schemas.worker import ModalityContract, Worker
from services.audit.merge import ENDINGS, Row
from services.audit.moments import moment
from services.audit.text import escaped, escaped_json, scrubbed
from services.runtime.bus import Record

INT64 = (1 << 63) - 1
TEXT_LIMIT = 4_000


@dataclass(frozen=True, slots=True)
class Rows:
    """What one record adds to the store. Candidates and media come only with their decision."""

    requests: list[Row] = field(default_factory=list)
    decisions: list[Row] = field(default_factory=list)
    candidates: list[Row] = field(default_factory=list)
    media: list[Row] = field(default_factory=list)
    outcomes: list[Row] = field(default_factory=list)
    workers: list[Row] = field(default_factory=list)
    contracts: list[Row] = field(default_factory=list)
    dead_letters: list[Row] = field(default_factory=list)
    retired: list[tuple[str, datetime]] = field(default_factory=list)


def hex64(value: int | None) -> str | None:
    """16 hexadecimal digits."""
    return None if value is None else f"{value:016x}"


def joined_hex(addresses: list[int]) -> str:
    """Addresses as 16 hexadecimal digits each, without anything between."""
    numbers = array("Q", addresses)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes().hex()


def decision_rows(decision: Decision, record: Record) -> Rows:
    """A decision, its candidates and media, and what it says of its request.

    Raises:
        BadRecord: a time in it is outside the calendar.
    """
    created_at = moment(decision.created_at_ms)
    key = {"created_at": created_at, "tenant": decision.tenant, "request_id": decision.request_id}
    attempt = key | {"attempt": decision.attempt}
    request = _request_row(
        key,
        model=decision.model,
        lora=decision.lora,
        session_id=decision.session_id,
        priority=decision.priority,
        route_only=decision.route_only,
        deadline_at=moment(decision.deadline_ms),
        attempts=decision.attempt,
    )
    return Rows(
        requests=[request],
        decisions=[attempt | _decision_columns(decision, record)],
        candidates=[
            attempt | {"rank": rank} | _candidate_columns(decision, candidate)
            for rank, candidate in enumerate(decision.candidates)
        ],
        media=[key | {"item": item} | _media_columns(medium) for item, medium in enumerate(decision.media)],
    )


def _decision_columns(decision: Decision, record: Record) -> Row:
    return {
        "decided_at": moment(decision.now_ms),
        "outcome": decision.outcome.value,
        "model": escaped(decision.model),
        "lora": _text(decision.lora),
        "session_id": decision.session_id,
        "priority": decision.priority,
        "route_only": decision.route_only,
        "deadline_at": moment(decision.deadline_ms),
        "worker_id": decision.worker_id,
        "dp_rank": decision.dp_rank,
        "epoch": decision.epoch,
        "mode": decision.mode.value,
        "reason": decision.reason.value if decision.reason else None,
        "detail": _text(decision.detail),
        "variant": escaped(decision.variant),
        "block_size": decision.block_size,
        "prompt_tokens": decision.prompt_tokens,
        "exact_tokens": decision.exact_tokens,
        "total_blocks": decision.total_blocks,
        "overlap_confirmed": decision.overlap_confirmed,
        "overlap_predicted": decision.overlap_predicted,
        "usable_blocks": decision.usable_blocks,
        "predicted_tokens": decision.predicted_tokens,
        "candidate_count": len(decision.candidates) + decision.rest.count,
        "rest_min_cost": decision.rest.min_cost,
        "rest_max_cost": decision.rest.max_cost,
        "ties": decision.ties,
        "margin": decision.margin,
        "seed": hex64(decision.seed),
        "policy": escaped(decision.policy),
        "policy_version": escaped(decision.policy_version),
        "parameters": escaped_json(decision.parameters),
        "router": escaped(decision.router),
        "excluded": escaped_json(decision.excluded),
        "projection": [[at.topic, at.partition, at.offset] for at in decision.projection],
        "expanded_partition": decision.expanded.partition,
        "expanded_offset": decision.expanded.offset,
        "record_partition": record.partition,
        "record_offset": record.offset,
        "media_count": len(decision.media),
        "timings": escaped_json(decision.timings_ms),
        "addresses": joined_hex(decision.addresses),
    }


def _candidate_columns(decision: Decision, candidate: Candidate) -> Row:
    chosen = (
        decision.outcome is Outcome.ROUTED
        and candidate.worker_id == decision.worker_id
        and candidate.dp_rank == decision.dp_rank
    )
    columns = dict(_fields(candidate))
    columns["reported"] = escaped_json(candidate.reported)
    return {"chosen": chosen} | columns


def _media_columns(medium: DecisionMedia) -> Row:
    return {
        "kind": medium.kind.value,
        "identity": hex64(medium.identity),
        "source": medium.source.value,
        "forwarded": medium.forwarded,
        "width": medium.width,
        "height": medium.height,
        "size_bytes": medium.size_bytes,
        "frames": medium.frames,
        "tokens": medium.tokens,
        "token_offset": medium.offset,
        "host": _text(medium.host),
        "path": None if medium.path is None else _text(medium.path.partition("?")[0].partition("#")[0]),
        "url_hash": hex64(medium.url_hash),
        "reason": medium.reason.value if medium.reason else None,
    }


def lifecycle_rows(fact: Lifecycle) -> Rows:
    """A fact about a request (attempt 0, accepted) or about an attempt.

    Raises:
        BadRecord: a time in it is outside the calendar.
    """
    key = {"created_at": moment(fact.created_at_ms), "tenant": fact.tenant, "request_id": fact.request_id}
    at = moment(fact.at_ms)
    accepted = fact.event is LifecycleEvent.ACCEPTED
    rows = Rows()
    if fact.attempt == 0:
        rows.requests.append(
            _request_row(
                key,
                model=fact.model,
                session_id=fact.session_id,
                stream=fact.stream,
                route_only=fact.route_only,
                deadline_at=None if fact.deadline_ms is None else moment(fact.deadline_ms),
                accepted_at=at if accepted else None,
            )
        )
        if accepted:
            return rows
    rows.outcomes.append(key | {"attempt": fact.attempt} | _outcome_columns(fact, at))
    return rows


def _outcome_columns(fact: Lifecycle, at: datetime) -> Row:
    ended = fact.event.value in ENDINGS
    first = fact.event is LifecycleEvent.FIRST_TOKEN
    since_created = fact.at_ms - fact.created_at_ms
    usage = fact.usage
    return {
        "status": fact.event.value if ended else None,
        "stage": escaped(fact.stage) if ended else None,
        "worker_id": fact.worker_id,
        "dp_rank": fact.dp_rank if fact.worker_id is not None else None,
        "epoch": fact.epoch,
        "accepted_at": at if fact.event is LifecycleEvent.ACCEPTED else None,
        "first_token_at": at if first else None,
        "ended_at": at if ended else None,
        "ttft_ms": since_created if first else None,
        "total_ms": since_created if ended else None,
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "completion_tokens": usage.completion_tokens if usage else None,
        "cached_tokens": usage.cached_tokens if usage else None,
        "http_status": fact.status if ended else None,
        "code": _text(fact.code) if ended else None,
        "detail": _text(fact.detail) if ended else None,
        "before_output": fact.before_output if ended else None,
        "retryable": fact.retryable if ended else None,
        "timings": escaped_json(fact.timings_ms) if ended else None,
    }


def worker_rows(worker: Worker) -> Rows:
    """A registration: one row for this life of the worker, one for each proven or unproven modality.

    Raises:
        BadRecord: its epoch or time is outside the calendar.
    """
    key = {"created_at": moment(worker.epoch), "worker_id": worker.worker_id, "epoch": worker.epoch}
    updated_at = moment(worker.at_ms)
    row = key | {
        "updated_at": updated_at,
        "state": worker.state.value,
        "dp_size": worker.dp_size,
        "engine": escaped(worker.engine),
        "engine_version": escaped(worker.engine_version),
        "model": escaped(worker.model),
        "loras": escaped_json(worker.loras),
        "block_size": worker.block_size,
        "max_concurrency": worker.limits.max_concurrency,
        "max_model_len": worker.limits.max_model_len,
        "num_blocks": worker.limits.num_blocks,
        "agent": escaped(worker.agent),
    }
    contract = worker.contract
    proofs = {} if contract is None else {"text": contract.text, "image": contract.image, "video": contract.video}
    return Rows(
        workers=[row],
        contracts=[
            key | {"modality": modality, "updated_at": updated_at} | _contract_columns(worker, proof)
            for modality, proof in proofs.items()
        ],
    )


def _contract_columns(worker: Worker, proof: ModalityContract) -> Row:
    return {
        "model": escaped(worker.contract.model if worker.contract else worker.model),
        "proven": proof.proven,
        "variant": escaped(proof.variant),
        "verbatim_identity": proof.verbatim_identity,
        "max_pixels": proof.max_pixels,
        "detail": _text(proof.detail),
    }


def retired_rows(record: Record) -> Rows:
    """A tombstone in the workers topic: whatever lives of that worker are known, they are over."""
    worker_id = (record.key or b"").decode("utf-8", "backslashreplace")
    return Rows(retired=[(escaped(worker_id), moment(record.timestamp_ms))])


def dead_letter_rows(record: Record) -> Rows:
    """A dead letter: where the record stood, who gave up on it and why. Its value stays in Kafka.

    Headers that are missing or no numbers become empty text and zero: a dead letter must never be one too many.
    """
    headers = {name: value.decode("utf-8", "backslashreplace") for name, value in record.headers}

    def number(name: str, default: int = 0) -> int:
        text = headers.get(name, "")
        # Python reads no number of more than 4,300 digits.
        return min(int(text[:20]), INT64) if text.isascii() and text.isdigit() else default

    return Rows(
        dead_letters=[
            {
                "created_at": moment(min(number("dlq-timestamp-ms", record.timestamp_ms), 253_000_000_000_000)),
                "record_topic": escaped(headers.get("dlq-topic", ""))[:249],
                "record_partition": min(number("dlq-partition"), 2**31 - 1),
                "record_offset": number("dlq-offset"),
                "dead_at": moment(max(record.timestamp_ms, 0)),
                "stage": escaped(headers.get("dlq-stage", "")),
                "code": escaped(headers.get("dlq-code", "")),
                "message": scrubbed(headers.get("dlq-message", ""))[:TEXT_LIMIT],
                "record_key": None
                if record.key is None
                else escaped(record.key.decode("utf-8", "backslashreplace"))[:TEXT_LIMIT],
                "size_bytes": len(record.value or b""),
                "redriven": min(number("dlq-redriven"), 2**15 - 1),
                "letter_partition": record.partition,
                "letter_offset": record.offset,
            }
        ]
    )


def _request_row(key: Row, **known: object) -> Row:
    row: Row = dict.fromkeys(
        ("model", "lora", "session_id", "priority", "stream", "route_only", "deadline_at", "accepted_at", "attempts")
    )
    row |= known
    row["model"] = _text(row["model"]) or None
    row["lora"] = _text(row["lora"])
    return key | row


def _fields(part: Part) -> list[tuple[str, object]]:
    return [(name, getattr(part, name)) for name in type(part).model_fields]


def _text(text: str | None) -> str | None:
    return None if text is None else scrubbed(text)[:TEXT_LIMIT]
