"""Bring the store's schema to a revision: Alembic migrations from the ``migrations`` package, then the views anew."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine

from services.audit.database import open_engine
from services.audit.partitions import LOCK
from services.audit.views import VIEWS, create_statements, drop_statements
from services.runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a run did: the revisions before and after, None where there was or is no schema."""

    before: str | None
    after: str | None


def migrations_folder() -> Path:
    """Where the migrations lie: inside the installed package, so that a wheel brings them along."""
    spec = find_spec("migrations")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package `migrations` is missing from this installation")
    return Path(spec.origin).parent


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration, without an ini file."""
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def head() -> str:
    """The revision this build of kvroute expects."""
    revision = ScriptDirectory.from_config(configuration()).get_current_head()
    if revision is None:
        raise RuntimeError(f"there are no migrations in {migrations_folder()}")
    return revision


async def current(engine: AsyncEngine) -> str | None:
    """The revision of the database; None before the first migration."""
    async with engine.connect() as connection:
        return await connection.run_sync(_revision)


async def upgrade(settings: Settings, revision: str = "head") -> Migrated:
    """Migrate the store of the settings up to a revision. Raises ConfigError, or what the database raises."""
    engine = open_engine(settings)
    try:
        return await upgrade_engine(engine, revision)
    finally:
        await engine.dispose()


async def upgrade_engine(engine: AsyncEngine, revision: str = "head") -> Migrated:
    """Migrate up to a revision, in one transaction where the database can. Safe to run from many places at once."""
    return await _migrate(engine, command.upgrade, revision)


async def downgrade_engine(engine: AsyncEngine, revision: str) -> Migrated:
    """Migrate down to a revision (``base``: nothing is left)."""
    return await _migrate(engine, command.downgrade, revision)


async def _migrate(engine: AsyncEngine, direction: object, revision: str) -> Migrated:
    async with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        return await connection.run_sync(_run, direction, revision)


def _run(connection: Connection, direction: object, revision: str) -> Migrated:
    assert callable(direction)
    before = _revision(connection)
    expected = head()
    if before == expected and revision in ("head", expected) and _has_views(connection):
        return Migrated(before, before)
    for statement in drop_statements():
        connection.exec_driver_sql(statement)
    direction(configuration(connection), revision)
    after = _revision(connection)
    if after == expected:
        for statement in create_statements(connection.dialect.name):
            connection.exec_driver_sql(statement)
    return Migrated(before, after)


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _has_views(connection: Connection) -> bool:
    return set(inspect(connection).get_view_names()) >= {view.name for view in VIEWS}
