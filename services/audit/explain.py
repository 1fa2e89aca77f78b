"""Why a request went where it went: everything the store knows of it, put together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from services.audit import tables
from services.audit.elsewhere import SeenElsewhere, seen_elsewhere
from services.audit.merge import Row
from services.runtime.errors import KvrouteError


class UnknownRequest(KvrouteError):
    """The store knows no such request."""

    def __init__(self, request_id: str, tenant: str | None) -> None:
        of = f" of tenant {tenant!r}" if tenant is not None else ""
        super().__init__(
            f"the audit store knows no request {request_id!r}{of}: check the id (`kvroute audit recent` lists the "
            "newest); it may be older than KVROUTE_AUDIT_RETENTION_DAYS or not have reached the store yet, or its "
            "record was refused: `kvroute dlq list`"
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt: the decision, its candidates in rank order, and what came of it. Rows by column name."""

    attempt: int
    decision: Row | None
    candidates: list[Row]
    outcome: Row | None

    @property
    def realised_blocks(self) -> int | None:
        """Whole blocks of cached tokens the engine reported."""
        cached = (self.outcome or {}).get("cached_tokens")
        size = (self.decision or {}).get("block_size")
        return cached // size if cached is not None and size else None

    @property
    def token_error(self) -> int | None:
        """Cached tokens realised minus predicted."""
        cached = (self.outcome or {}).get("cached_tokens")
        return None if cached is None or self.decision is None else cached - self.decision["predicted_tokens"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A request, its media in prompt order, and its attempts (attempt 0: it ended before any decision)."""

    request: Row
    media: list[Row]
    attempts: list[Attempt]
    elsewhere: list[SeenElsewhere] = field(default_factory=list)
    """Of the first decided attempt."""


async def explain(
    connection: AsyncConnection, request_id: str, tenant: str | None = None, *, elsewhere: bool = False
) -> list[Explanation]:
    """Everything about a request id, the newest request first (ids are unique per tenant, not across them).

    ``elsewhere``: also where its media came before, which reads other requests' rows.

    Raises:
        UnknownRequest: there is no such request in the store.
    """
    requests = tables.requests
    query = select(requests).where(requests.c.request_id == request_id).order_by(requests.c.created_at.desc())
    if tenant is not None:
        query = query.where(requests.c.tenant == tenant)
    found = (await connection.execute(query)).mappings().all()
    if not found:
        raise UnknownRequest(request_id, tenant)
    return [await _explain(connection, dict(request), elsewhere) for request in found]


async def _explain(connection: AsyncConnection, request: Row, elsewhere: bool) -> Explanation:
    decisions = {row["attempt"]: row for row in await _rows(connection, tables.decisions, request, "attempt")}
    outcomes = {row["attempt"]: row for row in await _rows(connection, tables.outcomes, request, "attempt")}
    if not request["stream"]:
        # The whole answer comes at once: that moment is no time to a first token.
        for row in outcomes.values():
            row["ttft_ms"] = row["first_token_at"] = None
    candidates: dict[int, list[Row]] = {}
    for row in await _rows(connection, tables.candidates, request, "attempt", "rank"):
        candidates.setdefault(row["attempt"], []).append(row)
    media = await _rows(connection, tables.media, request, "item")
    first = min(decisions, default=0) if elsewhere else 0
    return Explanation(
        request=request,
        media=media,
        elsewhere=await seen_elsewhere(connection, media, decisions[first], candidates.get(first, [])) if first else [],
        attempts=[
            Attempt(number, decisions.get(number), candidates.get(number, []), outcomes.get(number))
            for number in sorted(decisions.keys() | outcomes.keys())
        ],
    )


async def _rows(connection: AsyncConnection, table: Table, request: Row, *order: str) -> list[dict[str, Any]]:
    query = (
        select(table)
        .where(
            table.c.created_at == request["created_at"],
            table.c.tenant == request["tenant"],
            table.c.request_id == request["request_id"],
        )
        .order_by(*(table.c[name] for name in order))
    )
    return [dict(row) for row in (await connection.execute(query)).mappings()]
