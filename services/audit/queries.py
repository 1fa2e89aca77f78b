"""What people ask the store: recent decisions, by worker, by model, fallbacks. SQL once, named, for both databases."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Boolean, TextClause, bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from services.audit.columns import UtcDateTime
from services.audit.views import PROMPT_TOKENS


@dataclass(frozen=True, slots=True)
class RecentDecision:
    """One attempt: what was decided, expected, and came of it; or (attempt 0) a request that ended before that."""

    created_at: datetime
    tenant: str
    request_id: str
    attempt: int
    outcome: str
    model: str | None
    worker_id: str | None
    dp_rank: int | None
    route_only: bool
    deadline_at: datetime | None
    mode: str | None
    reason: str | None
    prompt_tokens: int | None
    engine_prompt_tokens: int | None
    exact_tokens: int | None
    block_size: int | None
    total_blocks: int | None
    overlap_confirmed: int | None
    overlap_predicted: int | None
    predicted_tokens: int | None
    cached_tokens: int | None
    status: str | None
    ttft_ms: int | None
    total_ms: int | None
    why: str


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """A worker's part of a model's attempts since a moment. Rates are of prompt tokens, 0 to 1."""

    model: str
    worker_id: str
    attempts: int
    share: float
    finished: int
    failed: int
    prompt_tokens: int
    predicted_tokens: int
    cached_tokens: int
    hit_rate: float | None
    mean_ttft_ms: float | None


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """A model's attempts since a moment: how they were routed and how well the caches were used."""

    model: str
    attempts: int
    routed: int
    not_routed: int
    exact: int
    text_prefix: int
    load_only: int
    finished: int
    failed: int
    prompt_tokens: int
    predicted_tokens: int
    cached_tokens: int
    hit_rate: float | None
    mean_ttft_ms: float | None


@dataclass(frozen=True, slots=True)
class Fallback:
    """Attempts of a model whose prompt was not exact to its end, by reason."""

    model: str
    mode: str
    reason: str
    attempts: int
    prompt_tokens: int
    exact_tokens: int
    example_request_id: str


_UNDECIDED = ", ".join(
    f"CAST(NULL AS {kind}) AS {name}"
    for name, kind in (
        ("mode", "VARCHAR(16)"), ("reason", "VARCHAR(40)"), ("prompt_tokens", "INTEGER"),
        ("engine_prompt_tokens", "INTEGER"), ("exact_tokens", "INTEGER"), ("block_size", "INTEGER"),
        ("total_blocks", "INTEGER"), ("overlap_confirmed", "INTEGER"), ("overlap_predicted", "INTEGER"),
        ("predicted_tokens", "INTEGER"), ("cached_tokens", "INTEGER"),
    )
)  # fmt: skip

RECENT = f"""
SELECT created_at, tenant, request_id, attempt, outcome, model, worker_id, dp_rank, route_only, deadline_at, mode,
       reason, prompt_tokens, engine_prompt_tokens, exact_tokens, block_size, total_blocks, overlap_confirmed,
       overlap_predicted, predicted_tokens, cached_tokens, status, ttft_ms, total_ms, why
  FROM v_decision_explained
 WHERE created_at >= :since
   AND (:model = '' OR model = :model)
   AND (:worker_id = '' OR worker_id = :worker_id)
UNION ALL
SELECT o.created_at, o.tenant, o.request_id, o.attempt, 'undecided', r.model, CAST(NULL AS VARCHAR(64)),
       CAST(NULL AS INTEGER), coalesce(r.route_only, 1 = 0), r.deadline_at, {_UNDECIDED}, o.status,
       CAST(NULL AS BIGINT), o.total_ms,
       'ended before any decision: ' || o.status || ' by ' || coalesce(o.stage, 'an unknown stage')
         || CASE WHEN o.code IS NULL THEN '' ELSE ' (' || o.code || ')' END
  FROM outcomes o
  LEFT JOIN requests r
    ON r.created_at = o.created_at AND r.tenant = o.tenant AND r.request_id = o.request_id
 WHERE o.created_at >= :since AND o.attempt = 0 AND o.status IS NOT NULL
   AND (:model = '' OR r.model = :model)
   AND :worker_id = ''
   AND NOT EXISTS (SELECT 1 FROM decisions d
                    WHERE d.created_at = o.created_at AND d.tenant = o.tenant AND d.request_id = o.request_id)
 ORDER BY created_at DESC, request_id, attempt DESC
 LIMIT :limit
"""

_REALISED = f"""
       sum({PROMPT_TOKENS}) AS prompt_tokens,
       sum(d.predicted_tokens) AS predicted_tokens,
       sum(coalesce(o.cached_tokens, 0)) AS cached_tokens,
       sum(CASE WHEN o.status = 'finished' THEN o.cached_tokens END) * 1.0
         / nullif(sum(CASE WHEN o.status = 'finished' AND o.cached_tokens IS NOT NULL THEN {PROMPT_TOKENS} END), 0)
         AS hit_rate,
       avg(CASE WHEN r.stream THEN o.ttft_ms END) AS mean_ttft_ms
  FROM decisions d
  LEFT JOIN outcomes o
    ON o.created_at = d.created_at AND o.tenant = d.tenant AND o.request_id = d.request_id AND o.attempt = d.attempt
  LEFT JOIN requests r
    ON r.created_at = d.created_at AND r.tenant = d.tenant AND r.request_id = d.request_id
 WHERE d.created_at >= :since AND NOT d.route_only
"""

BY_WORKER = f"""
SELECT d.model, d.worker_id,
       count(*) AS attempts,
       count(*) * 1.0 / sum(count(*)) OVER (PARTITION BY d.model) AS share,
       sum(CASE WHEN o.status = 'finished' THEN 1 ELSE 0 END) AS finished,
       sum(CASE WHEN o.status = 'failed' THEN 1 ELSE 0 END) AS failed,
       {_REALISED}
   AND d.outcome = 'routed'
 GROUP BY d.model, d.worker_id
 ORDER BY d.model, count(*) DESC, d.worker_id
"""

BY_MODEL = f"""
SELECT d.model,
       count(*) AS attempts,
       sum(CASE WHEN d.outcome = 'routed' THEN 1 ELSE 0 END) AS routed,
       sum(CASE WHEN d.outcome <> 'routed' THEN 1 ELSE 0 END) AS not_routed,
       sum(CASE WHEN d.mode = 'exact' THEN 1 ELSE 0 END) AS exact,
       sum(CASE WHEN d.mode = 'text_prefix' THEN 1 ELSE 0 END) AS text_prefix,
       sum(CASE WHEN d.mode = 'load_only' THEN 1 ELSE 0 END) AS load_only,
       sum(CASE WHEN o.status = 'finished' THEN 1 ELSE 0 END) AS finished,
       sum(CASE WHEN o.status = 'failed' THEN 1 ELSE 0 END) AS failed,
       {_REALISED}
 GROUP BY d.model
 ORDER BY count(*) DESC, d.model
"""

FALLBACKS = f"""
SELECT d.model, d.mode, coalesce(d.reason, 'none') AS reason,
       count(*) AS attempts,
       sum({PROMPT_TOKENS}) AS prompt_tokens,
       sum(d.exact_tokens) AS exact_tokens,
       max(d.request_id) AS example_request_id
  FROM decisions d
  LEFT JOIN outcomes o
    ON o.created_at = d.created_at AND o.tenant = d.tenant AND o.request_id = d.request_id AND o.attempt = d.attempt
 WHERE d.created_at >= :since AND (d.mode <> 'exact' OR d.reason IS NOT NULL)
 GROUP BY d.model, d.mode, coalesce(d.reason, 'none')
 ORDER BY count(*) DESC, d.model, reason
"""


async def recent(
    connection: AsyncConnection, since: datetime, *, limit: int = 20, model: str = "", worker_id: str = ""
) -> list[RecentDecision]:
    """The newest attempts first."""
    values = {"since": since, "limit": limit, "model": model, "worker_id": worker_id}
    return await _read(connection, RecentDecision, RECENT, values)


async def by_worker(connection: AsyncConnection, since: datetime) -> list[WorkerShare]:
    """Each worker's share of its model's routed attempts."""
    return await _read(connection, WorkerShare, BY_WORKER, {"since": since})


async def by_model(connection: AsyncConnection, since: datetime) -> list[ModelSummary]:
    """Every model that had requests."""
    return await _read(connection, ModelSummary, BY_MODEL, {"since": since})


async def fallbacks(connection: AsyncConnection, since: datetime) -> list[Fallback]:
    """Why prompts were not exact to their end, the commonest reason first."""
    return await _read(connection, Fallback, FALLBACKS, {"since": since})


_KINDS: dict[str, type[TypeEngine[Any]]] = {
    "created_at": UtcDateTime, "deadline_at": UtcDateTime, "route_only": Boolean,
}  # fmt: skip
"""Columns whose values SQLite gives as text and numbers."""

Answer = TypeVar("Answer")


async def _read(connection: AsyncConnection, kind: type[Answer], sql: str, values: dict[str, Any]) -> list[Answer]:
    names = [column.name for column in fields(kind)]  # type: ignore[arg-type]  # all kinds here are dataclasses
    found = await connection.execute(_typed(sql, names, values), values)
    return [kind(**{name: _plain(row[name]) for name in names}) for row in found.mappings()]


def _typed(sql: str, names: list[str], values: dict[str, Any]) -> TextClause:
    """The statement with moments told apart from text, which SQLite could not."""
    statement = text(sql)
    moments = [bindparam(name, type_=UtcDateTime()) for name, value in values.items() if isinstance(value, datetime)]
    if moments:
        statement = statement.bindparams(*moments)
    typed = {name: kind() for name, kind in _KINDS.items() if name in names}
    return statement.columns(**typed) if typed else statement  # type: ignore[return-value]


def _plain(value: Any) -> Any:
    """PostgreSQL's sums and averages are Decimals: whole ones become int, others float."""
    if type(value).__name__ == "Decimal":
        return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)
    return value
