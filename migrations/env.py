"""How Alembic reaches the store: the connection `kvroute db` hands over, or one of its own from the settings."""

from __future__ import annotations

import asyncio
import os

from alembic import context
from sqlalchemy import Connection
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from services.audit.partitions import is_partition
from services.audit.tables import metadata


def include_name(name: str | None, kind: str, _parents: object) -> bool:
    """Partitions belong to their table: autogeneration leaves them alone."""
    return not (kind == "table" and name is not None and is_partition(name))


def migrate(connection: Connection) -> None:
    """Run the migrations on a connection whose transaction the caller owns."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        include_name=include_name,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


async def _alone() -> None:
    """For `alembic -c migrations/alembic.ini …` while developing: KVROUTE_DATABASE_URL names the database."""
    engine = create_async_engine(make_url(os.environ["KVROUTE_DATABASE_URL"]))
    async with engine.begin() as connection:
        await connection.run_sync(migrate)
    await engine.dispose()


given = context.config.attributes.get("connection")
if given is None:
    asyncio.run(_alone())
else:
    migrate(given)
