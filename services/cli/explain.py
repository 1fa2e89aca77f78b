"""``kvroute explain REQUEST_ID``: why this worker."""

from __future__ import annotations

import click
from sqlalchemy.ext.asyncio import AsyncEngine

from services.audit.explain import Explanation
from services.audit.explain import explain as ask
from services.cli.db import with_store
from services.cli.explained import as_json, drawing
from services.cli.session import Session, command_options, examples


@click.command(epilog=examples("kvroute explain req-42", "kvroute explain req-42 --tenant acme --json"))
@click.argument("request_id")
@click.option("--tenant", default=None, help="Of this tenant, where several use the same id.")
@command_options
def explain(session: Session, request_id: str, tenant: str | None) -> None:
    """Say why a request went where it went: candidates with overlap, load and cost, media, predicted and realised.

    The bar of a candidate is its cost: prefill, decode and request terms. `?` marks a slot whose index had a gap.
    docs/audit.md, "Reading explain", says what each number means.
    """

    async def read(engine: AsyncEngine) -> list[Explanation]:
        async with engine.connect() as connection:
            return await ask(connection, request_id, tenant, elsewhere=True)

    newest, *earlier = session.run(with_store(session.settings, read))
    if session.out.json:
        session.out.value(as_json(newest))
    else:
        session.out.draw(*drawing(newest, session.out.console.width))
    if earlier:
        session.out.say(f"{len(earlier)} more requests had this id; this is the newest")
