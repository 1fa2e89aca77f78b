"""Media a candidate has seen before, but behind another prefix: the commonest answer to "why was it not cached?"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import not_, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from services.audit import tables
from services.audit.merge import Row

MOST_MEDIA = 8
MOST_EARLIER = 50
"""Media of the request, and earlier requests of each, that are looked at."""
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class SeenElsewhere:
    """Medium ``item`` was sent to a worker before, in ``request_id``, behind a prefix that is not this prompt's."""

    item: int
    kind: str
    worker_id: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a medium stands: ``token_offset`` in a prompt whose blocks of ``block_size`` have these addresses."""

    token_offset: int
    block_size: int
    addresses: str

    def behind_another_prefix(self, other: Place) -> bool:
        """Whether what stands before the medium surely differs. False too where that can't be told."""
        if not self.block_size or self.block_size != other.block_size:
            return False
        if self.token_offset != other.token_offset:
            return True
        # Addresses are chained: the last full block before the medium says it of all before it.
        end = self.token_offset // self.block_size * _DIGITS
        mine, theirs = (place.addresses[end - _DIGITS : end] for place in (self, other))
        return end > 0 and len(mine) == len(theirs) == _DIGITS and mine != theirs


async def seen_elsewhere(
    connection: AsyncConnection, media: Iterable[Row], decision: Row, candidates: Iterable[Row]
) -> list[SeenElsewhere]:
    """For each medium and candidate that does not hold its KV: the newest earlier request, if behind another prefix."""
    held = {row["worker_id"]: sum(row[f"overlap_{tier}"] for tier in ("device", "host", "disk")) for row in candidates}
    placed = [row for row in media if row["identity"] is not None and row["token_offset"] is not None]
    found: list[SeenElsewhere] = []
    for medium in placed[:MOST_MEDIA]:
        here = Place(medium["token_offset"], decision["block_size"], decision["addresses"])
        without = {name for name, blocks in held.items() if blocks * here.block_size <= here.token_offset}
        seen: set[str] = set()
        for row in await _earlier(connection, medium, sorted(without)):
            worker = row["worker_id"]
            if worker in seen:
                continue
            seen.add(worker)
            if here.behind_another_prefix(Place(row["token_offset"], row["block_size"], row["addresses"])):
                found.append(SeenElsewhere(medium["item"], medium["kind"], worker, row["request_id"]))
    return found


async def _earlier(connection: AsyncConnection, medium: Row, workers: list[str]) -> list[Row]:
    m, d = tables.media.c, tables.decisions.c
    query = (
        select(d.worker_id, m.request_id, m.token_offset, d.block_size, d.addresses)
        .join_from(
            tables.media, tables.decisions,
            (d.created_at == m.created_at) & (d.tenant == m.tenant) & (d.request_id == m.request_id),
        )
        .where(
            m.identity == medium["identity"],
            m.created_at <= medium["created_at"],
            m.tenant == medium["tenant"],
            or_(m.created_at != medium["created_at"], m.request_id != medium["request_id"]),
            m.token_offset.is_not(None),
            d.worker_id.in_(workers),
            d.outcome == "routed",
            not_(d.route_only),
        )
        .order_by(m.created_at.desc(), d.attempt.desc())
        .limit(MOST_EARLIER)
    )  # fmt: skip
    return [dict(row) for row in (await connection.execute(query)).mappings()] if workers else []
