"""Rows into the store: one transaction a batch, and the same batch twice changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from itertools import chain
from typing import Any

from sqlalchemy import Table, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from services.audit import merge, tables
from services.audit.merge import Merging, Row, fold
from services.audit.partitions import DAYS_AHEAD, ensure_days, forget_before, retention_start, wanted_days
from services.audit.rows import Rows
from services.audit.upserts import insert_or_merge, insert_or_skip

Key = tuple[Any, ...]
ATTEMPT_KEY = ("created_at", "tenant", "request_id", "attempt")


class Writer:
    """Writes batches. ``now`` is asked for the current moment: partitions and retention follow it."""

    def __init__(self, engine: AsyncEngine, now: Callable[[], datetime], retention_days: int) -> None:
        self._engine = engine
        self._dialect = engine.dialect.name
        self._now = now
        self._retention_days = retention_days
        self._days: set[date] = set()

    async def write(self, batch: Sequence[Rows]) -> None:
        """Write a batch, all or nothing. Raises what SQLAlchemy raises (see ``faults``).

        The first decision of a (request, attempt) stays; candidates and media are written only along with it, so a
        later record that lost can leave nothing behind.
        """
        deciding = _first_of_each(batch)
        requests, outcomes = _of(batch, "requests"), _of(batch, "outcomes")
        await self._prepare_days(row["created_at"] for row in chain(requests, outcomes))
        async with self._engine.begin() as connection:
            await self._merge(connection, tables.requests, merge.REQUESTS, requests)
            won = await self._insert_decisions(connection, deciding)
            await self._insert(connection, tables.candidates, _of(won, "candidates"))
            await self._insert(connection, tables.media, _of(won, "media"))
            await self._merge(connection, tables.outcomes, merge.OUTCOMES, outcomes)
            await self._merge(connection, tables.workers, merge.WORKERS, _of(batch, "workers"))
            await self._merge(connection, tables.contracts, merge.CONTRACTS, _of(batch, "contracts"))
            await self._insert(connection, tables.dead_letters, _of(batch, "dead_letters"))
            for worker_id, at in chain.from_iterable(rows.retired for rows in batch):
                await connection.execute(_retire(worker_id, at))

    async def maintain(self) -> list[str]:
        """Make the coming days' partitions and forget the days past retention. Returns what is gone."""
        oldest = retention_start(self._now(), self._retention_days)
        await self._prepare_days((), ahead=DAYS_AHEAD)
        async with self._engine.begin() as connection:
            gone = await forget_before(connection, oldest)
        self._days = {day for day in self._days if day >= oldest}
        return gone

    async def _prepare_days(self, moments: Iterable[datetime], ahead: int = 0) -> None:
        if self._dialect != "postgresql":
            return
        now = self._now()
        coming = (now + timedelta(days=day) for day in range(ahead + 1))
        missing = wanted_days(chain(moments, coming), now, self._retention_days) - self._days
        if missing:
            async with self._engine.begin() as connection:
                await ensure_days(connection, missing)
            self._days |= missing

    async def _insert_decisions(self, connection: AsyncConnection, deciding: dict[Key, Rows]) -> list[Rows]:
        """Insert the decisions that are new. Returns the rows they came with."""
        if not deciding:
            return []
        key = [tables.decisions.c[name] for name in ATTEMPT_KEY]
        insert = insert_or_skip(self._dialect, tables.decisions).returning(*key)
        inserted = await connection.execute(insert, [row for rows in deciding.values() for row in rows.decisions])
        return [deciding[tuple(row)] for row in inserted]

    async def _insert(self, connection: AsyncConnection, table: Table, rows: list[Row]) -> None:
        if rows:
            names = [column.name for column in table.primary_key]
            rows.sort(key=lambda row: tuple(row[name] for name in names))
            await connection.execute(insert_or_skip(self._dialect, table), rows)

    async def _merge(self, connection: AsyncConnection, table: Table, merging: Merging, rows: list[Row]) -> None:
        folded = fold(merging, rows)
        if folded:
            await connection.execute(insert_or_merge(self._dialect, table, merging), folded)


def _of(batch: Iterable[Rows], name: str) -> list[Row]:
    return list(chain.from_iterable(getattr(rows, name) for rows in batch))


def _first_of_each(batch: Sequence[Rows]) -> dict[Key, Rows]:
    """By attempt, in key order, the first record that decides it: the batch is in the order of the topic."""
    first: dict[Key, Rows] = {}
    for rows in batch:
        for row in rows.decisions:
            first.setdefault(tuple(row[name] for name in ATTEMPT_KEY), rows)
    return dict(sorted(first.items()))


def _retire(worker_id: str, at: datetime) -> Any:
    """What a tombstone says: lives known until then are over."""
    workers = tables.workers
    return (
        update(workers)
        .where(workers.c.worker_id == worker_id, workers.c.updated_at <= at, workers.c.state != "retired")
        .values(state="retired", updated_at=at)
    )
