"""Days: PostgreSQL's daily partitions, made ahead and on demand, and what happens to days past their retention.

Every partitioned table has a default partition too, so that a row of any date finds a place; a day's partition made
later takes the rows of its day over. SQLite has plain tables and forgets by DELETE.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import and_, delete, exists, or_, text
from sqlalchemy.ext.asyncio import AsyncConnection

from services.audit.tables import PARTITIONED, contracts, dead_letters, workers

LOCK = 0x6B76726F757465  # "kvroute": one replica at a time changes partitions
DAYS_AHEAD = 2
_DAY = re.compile(r"_p(\d{8})$")


def partition_name(table: str, day: date) -> str:
    """Name of a table's partition of one day (UTC)."""
    return f"{table}_p{day:%Y%m%d}"


def day_of(name: str) -> date | None:
    """The day in a partition's name; None for the default partition and everything else."""
    found = _DAY.search(name)
    return datetime.strptime(found[1], "%Y%m%d").replace(tzinfo=UTC).date() if found else None


def is_partition(name: str) -> bool:
    """Whether a table is a partition of one of ours."""
    return any(
        name == f"{table.name}_default" or re.fullmatch(rf"{table.name}_p\d{{8}}", name) for table in PARTITIONED
    )


def wanted_days(moments: Iterable[datetime], now: datetime, retention_days: int) -> set[date]:
    """The days of rows about to be written that deserve a partition: inside the retention, not far in the future."""
    oldest, newest = now.date() - timedelta(days=retention_days), now.date() + timedelta(days=DAYS_AHEAD)
    return {day for day in (moment.astimezone(UTC).date() for moment in moments) if oldest <= day <= newest}


async def ensure_days(connection: AsyncConnection, days: Iterable[date]) -> list[str]:
    """Make what is missing of these days' partitions. Returns the names of those made. PostgreSQL only."""
    wanted = sorted(days)
    if not wanted:
        return []
    await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    made: list[str] = []
    for table in PARTITIONED:
        present = await _children(connection, table.name)
        for day in wanted:
            name = partition_name(table.name, day)
            if name not in present:
                await _make(connection, table.name, name, day)
                made.append(name)
    return made


async def _make(connection: AsyncConnection, table: str, name: str, day: date) -> None:
    """A standalone table first, filled from the default partition, then attached: attaching would fail otherwise."""
    start, end = f"{day} 00:00:00+00", f"{day + timedelta(days=1)} 00:00:00+00"
    await connection.execute(text(f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING STORAGE)"))
    await connection.execute(
        text(
            f"WITH moved AS (DELETE FROM {table}_default "
            f"WHERE created_at >= '{start}' AND created_at < '{end}' RETURNING *) "
            f"INSERT INTO {name} SELECT * FROM moved"
        )
    )
    await connection.execute(
        text(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ('{start}') TO ('{end}')")
    )


async def forget_before(connection: AsyncConnection, oldest: date) -> list[str]:
    """Remove every day before ``oldest``. Returns what was dropped (PostgreSQL) or emptied (SQLite).

    PostgreSQL detaches and drops whole partitions, which costs the same however many rows a day had.
    """
    cutoff = datetime(oldest.year, oldest.month, oldest.day, tzinfo=UTC)
    gone: list[str] = []
    if connection.dialect.name == "postgresql":
        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        await connection.execute(text("SET LOCAL lock_timeout = '5s'"))
        for table in PARTITIONED:
            for name in await _children(connection, table.name):
                day = day_of(name)
                if day is not None and day < oldest:
                    await connection.execute(text(f"ALTER TABLE {table.name} DETACH PARTITION {name}"))
                    await connection.execute(text(f"DROP TABLE {name}"))
                    gone.append(name)
            await connection.execute(
                text(f"DELETE FROM {table.name}_default WHERE created_at < :cutoff"), {"cutoff": cutoff}
            )
    else:
        for table in PARTITIONED:
            deleted = await connection.execute(delete(table).where(table.c.created_at < cutoff))
            if deleted.rowcount:
                gone.append(table.name)
    await connection.execute(delete(dead_letters).where(dead_letters.c.dead_at < cutoff))
    await _forget_workers(connection, cutoff)
    return gone


async def _forget_workers(connection: AsyncConnection, cutoff: datetime) -> None:
    """Lives of workers that are over: retired, or followed by a later one. A living worker's row stays for ever."""
    later = workers.alias("later")
    over = or_(
        workers.c.state == "retired",
        exists().where(and_(later.c.worker_id == workers.c.worker_id, later.c.epoch > workers.c.epoch)),
    )
    await connection.execute(delete(workers).where(workers.c.updated_at < cutoff, over))
    kept = exists().where(and_(workers.c.worker_id == contracts.c.worker_id, workers.c.epoch == contracts.c.epoch))
    await connection.execute(delete(contracts).where(contracts.c.updated_at < cutoff, ~kept))


async def _children(connection: AsyncConnection, table: str) -> set[str]:
    found = await connection.execute(
        text(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
            "WHERE i.inhparent = CAST(:name AS regclass)"
        ),
        {"name": table},
    )
    return set(found.scalars())


def retention_start(now: datetime, retention_days: int) -> date:
    """The oldest day that is kept: ``retention_days`` whole days before today."""
    return (now - timedelta(days=retention_days)).astimezone(UTC).date()
