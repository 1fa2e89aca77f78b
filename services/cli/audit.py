"""``kvroute audit``: past decisions, by time, worker, model and reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import click
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from services.audit import queries
from services.audit.moments import moment
from services.cli.db import with_store
from services.cli.groups import SuggestingGroup
from services.cli.output import Column, Dull, percent
from services.cli.session import Session, command_options, examples
from services.cli.since import since as parse_since

_since = click.option("--since", default="24h", show_default=True, help="How far back: 15m, 6h, 7d or an ISO moment.")


@click.group(
    cls=SuggestingGroup,
    epilog=examples("kvroute audit recent", "kvroute audit workers --since 1h", "kvroute audit fallbacks --json")
)
def audit() -> None:
    """Look at past decisions in the audit store. The same and more is in its views: docs/audit.md."""


def _ask(session: Session, since: str, ask: Callable[..., Awaitable[list[Any]]], **narrow: Any) -> list[Any]:
    start = parse_since(since, moment(session.wiring.now_ms()))

    async def answer(engine: AsyncEngine) -> list[Any]:
        connection: AsyncConnection
        async with engine.connect() as connection:
            return await ask(connection, start, **narrow)

    return session.run(with_store(session.settings, answer))


@audit.command(
    epilog=examples(
        "kvroute audit recent",
        "kvroute audit recent --worker w2 --since 15m",
        "kvroute audit recent --limit 500 --json",
    )
)
@_since
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 100_000), help="Rows at most.")
@click.option("--model", default="", help="Only this model.")
@click.option("--worker", default="", help="Only this worker.")
@command_options
def recent(session: Session, since: str, limit: int, model: str, worker: str) -> None:
    """List the newest decisions: worker, overlap, and predicted beside realised cached tokens.

    `asked only` are those of `kvroute route`; `undecided` in the worker's place are requests that ended before any
    decision. Records that were no valid requests at all are in `kvroute dlq list`.
    """
    rows = _ask(session, since, queries.recent, limit=limit, model=model, worker_id=worker)
    now = moment(session.wiring.now_ms())
    when = "%H:%M:%S" if all(row.created_at.date() == now.date() for row in rows) else "%Y-%m-%d %H:%M:%S"
    session.out.rows(
        rows,
        [
            Column("when (UTC)", lambda row: row.created_at.strftime(when), rank=3, whole=True),
            Column("request", lambda row: row.request_id, whole=True),
            Column("#", lambda row: row.attempt, right=True, rank=5, dull=1, whole=True),
            Column("model", lambda row: row.model, rank=4, dull=Dull.SAME, whole=True),
            Column("worker", lambda row: row.worker_id or row.outcome, whole=True),
            Column("overlap", _overlap, right=True, rank=2, whole=True),
            Column("predicted", lambda row: row.predicted_tokens, right=True, whole=True),
            Column("realised", lambda row: row.cached_tokens, right=True, whole=True),
            Column("view", lambda row: f"{row.mode} ({row.reason})" if row.reason else row.mode, rank=1, dull="exact"),
            Column("status", lambda row: _status(row, now)),
            Column("ttft ms", lambda row: row.ttft_ms, right=True, rank=6, dull="", whole=True),
        ],
        title=f"Decisions since {since}, newest first",
        empty=f"no decisions since {since}",
    )


def _overlap(row: queries.RecentDecision) -> str:
    return "" if row.total_blocks is None else f"{row.overlap_confirmed}/{row.total_blocks}"


def _status(row: queries.RecentDecision, now: datetime) -> str:
    """How it ended. What nobody has stated the end of runs until its deadline, and no longer."""
    if row.status is not None:
        return row.status
    return "running" if row.deadline_at is None or now < row.deadline_at else "end not known"


@audit.command(epilog=examples("kvroute audit workers", "kvroute audit workers --since 1h --json"))
@_since
@command_options
def workers(session: Session, since: str) -> None:
    """Show each worker's share of its models' requests and its hit rate."""
    session.out.rows(
        _ask(session, since, queries.by_worker),
        [
            Column("model", lambda row: row.model, rank=2, dull=Dull.SAME, whole=True),
            Column("worker", lambda row: row.worker_id, whole=True),
            Column("attempts", lambda row: row.attempts, right=True, whole=True),
            Column("share", lambda row: percent(row.share), right=True, whole=True),
            Column("prompt\ntokens", lambda row: row.prompt_tokens, right=True, rank=3, whole=True),
            Column("predicted", lambda row: row.predicted_tokens, right=True, rank=1, whole=True),
            Column("cached", lambda row: row.cached_tokens, right=True, rank=1, whole=True),
            Column("hit rate", lambda row: percent(row.hit_rate), right=True, whole=True),
            Column("failed", lambda row: row.failed, right=True, dull=0, whole=True),
            Column("mean ttft\nms", lambda row: row.mean_ttft_ms, right=True, rank=4, dull="", whole=True),
        ],
        title=f"Workers since {since}",
        empty=f"no routed requests since {since}",
    )


@audit.command(epilog=examples("kvroute audit models", "kvroute audit models --since 7d --json"))
@_since
@command_options
def models(session: Session, since: str) -> None:
    """Show for each model how its requests were routed and how well caches were used."""
    session.out.rows(
        _ask(session, since, queries.by_model),
        [
            Column("model", lambda row: row.model, whole=True),
            Column("attempts", lambda row: row.attempts, right=True, whole=True),
            Column("not\nrouted", lambda row: row.not_routed, right=True, rank=1, dull=0, whole=True),
            Column("exact", lambda row: row.exact, right=True, whole=True),
            Column("text\nprefix", lambda row: row.text_prefix, right=True, rank=2, dull=0, whole=True),
            Column("load\nonly", lambda row: row.load_only, right=True, rank=2, dull=0, whole=True),
            Column("finished", lambda row: row.finished, right=True, rank=3, whole=True),
            Column("failed", lambda row: row.failed, right=True, dull=0, whole=True),
            Column("hit rate", lambda row: percent(row.hit_rate), right=True, whole=True),
            Column("mean ttft\nms", lambda row: row.mean_ttft_ms, right=True, rank=4, dull="", whole=True),
        ],
        title=f"Models since {since}",
        empty=f"no decisions since {since}",
    )


@audit.command(epilog=examples("kvroute audit fallbacks", "kvroute audit fallbacks --since 7d --json"))
@_since
@command_options
def fallbacks(session: Session, since: str) -> None:
    """Show why prompts were not exact to their end, the commonest first. docs/reasons.md says how to mend each."""
    session.out.rows(
        _ask(session, since, queries.fallbacks),
        [
            Column("model", lambda row: row.model, rank=1, dull=Dull.SAME, whole=True),
            Column("reason", lambda row: row.reason, whole=True),
            Column("view", lambda row: row.mode, rank=2, dull=Dull.SAME, whole=True),
            Column("attempts", lambda row: row.attempts, right=True, whole=True),
            Column("prompt\ntokens", lambda row: row.prompt_tokens, right=True, rank=3, whole=True),
            Column("exact\ntokens", lambda row: row.exact_tokens, right=True, rank=3, whole=True),
            Column("for example", lambda row: row.example_request_id, whole=True),
        ],
        title=f"Fallbacks since {since}",
        empty=f"no fallbacks since {since}: every prompt was exact to its end",
    )
