"""Days come and go: made ahead and on demand, forgotten after their retention."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from sqlalchemy import text

from services.audit import tables
from services.audit.moments import milliseconds, moment
from services.audit.rows import dead_letter_rows, decision_rows, lifecycle_rows, worker_rows
from tests.fakes.audit_records import NOON_MS, dead_letter, decision, finished, record_of, worker
from tests.integration.audit.conftest import rows_in

DAY_MS = 86_400_000


def decided(request_id, days=0):
    at = NOON_MS + days * DAY_MS
    message = decision(request_id, created_at_ms=at, now_ms=at, deadline_ms=at + 1000)
    return decision_rows(message, record_of(message))


async def partition_counts(engine, table="decisions"):
    """Rows by partition."""
    async with engine.connect() as connection:
        found = await connection.execute(text(f"SELECT tableoid::regclass::text, count(*) FROM {table} GROUP BY 1"))
        return dict([tuple(row) for row in found])


async def partitions(engine, table="decisions"):
    async with engine.connect() as connection:
        query = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = CAST(:name AS regclass) ORDER BY 1"
        return list((await connection.execute(text(query), {"name": table})).scalars())


@pytest.fixture
def on_postgresql(engine):
    if engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no partitions")


@pytest.mark.usefixtures("on_postgresql")
class TestPartitions:
    async def test_a_row_makes_its_days_partition(self, writer, engine):
        await writer.write([decided("r1"), decided("r2", days=-1)])
        assert await partition_counts(engine) == {"decisions_p20260101": 1, "decisions_p20251231": 1}

    async def test_coming_days_are_made_ahead(self, writer, engine):
        await writer.maintain()
        days = ["decisions_p20260101", "decisions_p20260102", "decisions_p20260103"]
        assert await partitions(engine) == ["decisions_default", *days]

    async def test_rows_of_impossible_dates_find_a_place_without_partitions_of_their_own(self, writer, engine):
        await writer.write([decided("past", days=-5_000), decided("future", days=5_000)])
        assert await partition_counts(engine) == {"decisions_default": 2}
        assert await partitions(engine) == ["decisions_default", "decisions_p20260101"]  # today, as with every write

    async def test_a_day_made_late_takes_its_rows_over(self, writer, engine, now):
        await writer.write([decided("early", days=5)])
        now.at += timedelta(days=5)
        await writer.write([decided("timely", days=5)])
        assert await partition_counts(engine) == {"decisions_p20260106": 2}

    async def test_old_days_are_dropped_whole(self, writer, engine, now):
        await writer.write([decided("r1"), decided("r2", days=1), lifecycle_rows(finished())])
        now.at += timedelta(days=31)
        gone = await writer.maintain()
        assert "decisions_p20260101" in gone
        assert {table.name for table in tables.PARTITIONED} == {name.rpartition("_p")[0] for name in gone}
        assert [row["request_id"] for row in await rows_in(engine, tables.decisions)] == ["r2"]

    async def test_two_replicas_may_make_the_same_day(self, writer, engine, now):
        from services.audit.writer import Writer

        other = Writer(engine, now, 30)
        await writer.write([decided("r1")])
        await other.write([decided("r2")])
        assert await partition_counts(engine) == {"decisions_p20260101": 2}


async def test_days_past_retention_are_forgotten(writer, engine, now):
    old, kept = decided("old"), decided("kept", days=1)
    await writer.write([old, kept, dead_letter_rows(dead_letter(1))])
    now.at += timedelta(days=31)
    await writer.maintain()
    for table in (tables.decisions, tables.requests, tables.candidates):
        assert {row["request_id"] for row in await rows_in(engine, table)} == {"kept"}
    assert await rows_in(engine, tables.dead_letters) == []


async def test_retention_keeps_whole_days(writer, engine, now):
    await writer.write([decided("kept")])
    now.at += timedelta(days=30)
    await writer.maintain()
    assert len(await rows_in(engine, tables.decisions)) == 1


async def test_a_living_worker_is_never_forgotten_an_earlier_life_is(writer, engine, now):
    await writer.write([worker_rows(worker()), worker_rows(worker(epoch=NOON_MS + 1_000))])
    now.at += timedelta(days=100)
    await writer.maintain()
    assert [row["epoch"] for row in await rows_in(engine, tables.workers)] == [NOON_MS + 1_000]
    assert {row["epoch"] for row in await rows_in(engine, tables.contracts)} == {NOON_MS + 1_000}


def test_moments_have_days():
    assert moment(NOON_MS).date() == date(2026, 1, 1)
    assert milliseconds(moment(NOON_MS)) == NOON_MS
