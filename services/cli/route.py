"""``kvroute route``: where a request would go."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from services.cli.chat import body_of, chat_options, gateway_url, headers_of
from services.cli.output import Column, shown
from services.cli.send import first_model, known_to_the_store, naming_models
from services.cli.session import Session, command_options, examples
from services.runtime.errors import KvrouteError


@click.command(
    epilog=examples(
        'kvroute route "What is in this picture?" --image photo.jpg',
        'kvroute route "Hello" --book --request-id job-7',
        "kvroute route --done job-7",
    )
)
@chat_options(text_required=False)
@click.option("--done", metavar="REQUEST_ID", help="Say that a booked request has ended.")
@click.option("--book", is_flag=True, help="Count the load on the chosen worker until --done.")
@command_options
def route(session: Session, text: tuple[str, ...], book: bool, done: str | None, **options: Any) -> None:
    """Ask where a chat request would go, without running it: for callers that talk to the engines themselves."""
    if bool(text) == bool(done):
        raise click.UsageError("give the text of a request, or --done with the id of a booked one; not both")
    if done:
        session.run(_done(session, done, options["url"], options["api_key"]))
        if session.run(known_to_the_store(session.settings, done)) is False:
            raise KvrouteError(
                f"no request {done!r} is known to the audit store, so nothing was booked under this id: check it "
                "(`kvroute audit recent` lists the newest; booked ones are `asked only`)"
            )
        session.out.value({"request_id": done, "done": True}) if session.out.json else session.out.draw(
            f"{done} is done"
        )
        return
    found = session.run(_route(session, " ".join(text), book, **options))
    if session.out.json:
        session.out.value(found)
        return
    candidates = found.get("candidates") or []
    session.out.draw(
        f"{found.get('worker_id') or 'no worker'}: overlap {found.get('overlap_blocks')}/{found.get('total_blocks')} "
        f"blocks, {found.get('mode')}, policy {found.get('policy')}"
    )
    session.out.rows(
        candidates,
        [
            Column("slot", lambda row: f"{row.get('worker_id')}/{row.get('dp_rank')}"),
            Column("overlap", lambda row: row.get("overlap_blocks"), right=True),
            Column("+ recent", lambda row: row.get("overlap_predicted"), right=True),
            Column("cost", lambda row: shown(row.get("cost")), right=True),
        ],
        title="Candidates",
        empty="no candidates",
    )


async def _route(
    session: Session,
    text: str,
    book: bool,
    *,
    url: str,
    api_key: str | None,
    model: str,
    images: tuple[str, ...],
    videos: tuple[str, ...],
    system: str,
    **headers: Any,
) -> dict[str, Any]:
    async with session.wiring.gateway(gateway_url(session.settings, url), api_key) as gateway:
        body = body_of(model or await first_model(gateway), text, images, videos, system)
        with session.out.working("asking the router"):
            path = "/v1/route?book=true" if book else "/v1/route"
            return await naming_models(gateway, gateway.post(path, body, headers_of(**headers)))


async def _done(session: Session, request_id: str, url: str, api_key: str | None) -> None:
    async with session.wiring.gateway(gateway_url(session.settings, url), api_key) as gateway:
        await gateway.post(f"/v1/route/{quote(request_id, safe='')}/done", {}, {})
