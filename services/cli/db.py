"""``kvroute db``: the audit store's schema."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import click
from sqlalchemy.ext.asyncio import AsyncEngine

from services.audit import migrate
from services.audit.database import database_url, describe, missing_file, open_engine
from services.audit.faults import is_databases_fault
from services.cli.exits import Away
from services.cli.groups import SuggestingGroup
from services.cli.session import Session, command_options, examples
from services.runtime.settings import Settings

Answer = TypeVar("Answer")


async def with_store(
    settings: Settings, ask: Callable[[AsyncEngine], Awaitable[Answer]], *, create: bool = False
) -> Answer:
    """Open the audit store, ask, close. Raises Away when it can't be reached, or (unless ``create``) does not exist."""
    if not create and (path := missing_file(settings)) is not None:
        raise Away(
            f"there is no audit store at {path.absolute()}: name it with KVROUTE_DATABASE_URL, or make it with "
            "`kvroute up` or `kvroute db upgrade`"
        )
    engine = open_engine(settings)
    try:
        return await ask(engine)
    except Exception as error:
        if not is_databases_fault(error):
            raise
        cause = f"{error}".partition("\n")[0]
        raise Away(
            f"the audit store {describe(database_url(settings))} does not answer ({cause}): check KVROUTE_DATABASE_URL "
            "and that `kvroute db upgrade` has run"
        ) from error
    finally:
        await engine.dispose()


@click.group(cls=SuggestingGroup, epilog=examples("kvroute db upgrade", "kvroute db status"))
def db() -> None:
    """Migrate the audit store (KVROUTE_DATABASE_URL: PostgreSQL or SQLite)."""


@db.command(
    epilog=examples(
        "kvroute db upgrade", "KVROUTE_DATABASE_URL=postgresql://kvroute@db/kvroute kvroute db upgrade --json"
    )
)
@command_options
def upgrade(session: Session) -> None:
    """Bring the schema to the one this build needs. Does nothing when it is; safe to run from many places at once."""
    settings = session.settings
    with session.out.working("migrating"):
        done = session.run(with_store(settings, migrate.upgrade_engine, create=True))
    if session.out.json:
        session.out.value({"database": describe(database_url(settings)), "before": done.before, "after": done.after})
    elif done.before == done.after:
        session.out.draw(f"the audit store is at revision {done.after} already")
    else:
        session.out.draw(f"the audit store went from revision {done.before or 'none'} to {done.after}")


@db.command(epilog=examples("kvroute db status --json"))
@command_options
def status(session: Session) -> int:
    """Say which revision the store has and which this build needs. Exit code 1: they differ."""
    settings = session.settings
    found, needed = session.run(with_store(settings, migrate.current)), migrate.head()
    where = describe(database_url(settings))
    if session.out.json:
        session.out.value({"database": where, "revision": found, "needed": needed, "ready": found == needed})
    else:
        advice = "" if found == needed else ": run `kvroute db upgrade`"
        session.out.draw(f"{where} has revision {found or 'none'}, this build needs {needed}{advice}")
    return 0 if found == needed else 1
