"""``kvroute send``: a request from the command line, and where it went."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from services.audit.place import surely_missing
from services.cli.chat import body_of, chat_options, gateway_url, headers_of
from services.cli.gateway_client import Answer, GatewayClient, GatewayRefused
from services.cli.session import Session, command_options, examples
from services.runtime.errors import KvrouteError
from services.runtime.settings import Settings

if TYPE_CHECKING:
    from services.audit.explain import Attempt

AUDIT_SECONDS = 3.0
"""How long `send` waits for its decision and outcome to reach the audit store."""
UNKNOWN_SECONDS = 1.0
"""How long it waits for a store that knows nothing of the request: it may be another pipeline's."""
AUDIT_PAUSE = 0.1

Answered = TypeVar("Answered")


@click.command(
    epilog=examples(
        'kvroute send "Which chairs do you have?"',
        'kvroute send "What is in this picture?" --image photo.jpg --stream',
        'kvroute send "And these?" --image a.png --image https://example.com/b.png --json',
        'kvroute send "What happens here?" --video clip.mp4',
        'kvroute send "Hello" --no-audit',
    )
)
@chat_options()
@click.option("--stream", is_flag=True, help="Print the answer as it comes.")
@click.option("--max-tokens", type=click.IntRange(1), help="Of the answer.")
@click.option("--audit/--no-audit", default=True, show_default=True, help="Ask the audit store where it went and why.")
@command_options
def send(session: Session, text: tuple[str, ...], stream: bool, audit: bool, **options: Any) -> None:
    """Send a chat request to the gateway; print the answer, the worker that gave it and what its cache held.

    Overlap and realised cached tokens come from the audit store (KVROUTE_DATABASE_URL) where it can be reached.
    """
    result = session.run(_send(session, " ".join(text), stream, audit, **options))
    if session.out.json:
        session.out.value(result)
    else:
        session.out.say(_summary(result, audit))


async def _send(
    session: Session,
    text: str,
    stream: bool,
    audit: bool,
    *,
    url: str,
    api_key: str | None,
    model: str,
    images: tuple[str, ...],
    videos: tuple[str, ...],
    system: str,
    max_tokens: int | None,
    **headers: Any,
) -> dict[str, Any]:
    start = time.monotonic()
    async with session.wiring.gateway(gateway_url(session.settings, url), api_key) as gateway:
        streaming = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        name = model or await first_model(gateway)
        body = body_of(name, text, images, videos, system, max_tokens=max_tokens, **streaming)
        sent = headers_of(**headers)
        store = _store(session.settings) if audit else None
        with session.out.working("waiting for the answer"):
            answer = await naming_models(gateway, gateway.chat(body, sent))
        pieces = await _print_pieces(answer, echo=not session.out.json)
    seconds = time.monotonic() - start
    request_id = answer.request_id or sent["X-Request-Id"]
    with session.out.working("asking the audit store"):
        attempt = None if store is None else await _audited(await store, session.settings, request_id)
    return _result(answer, request_id, name, "".join(pieces), seconds, attempt)


async def _print_pieces(answer: Answer, *, echo: bool) -> list[str]:
    pieces: list[str] = []
    async for piece in answer.pieces:
        pieces.append(piece)
        if echo:
            sys.stdout.write(piece)
            sys.stdout.flush()
    if echo:
        sys.stdout.write("\n")
    return pieces


async def first_model(gateway: GatewayClient) -> str:
    """The first model the gateway lists. Raises KvrouteError when there is none, Away, GatewayRefused."""
    models = await gateway.models()
    if not models:
        raise KvrouteError(
            "the gateway lists no model: no worker has registered yet (`kvroute worker list`), or use --model"
        )
    return models[0]


async def naming_models(gateway: GatewayClient, answer: Awaitable[Answered]) -> Answered:
    """The answer; a refusal because there is no such model says which there are."""
    try:
        return await answer
    except GatewayRefused as error:
        if error.status != 404:
            raise
        served = ", ".join(await gateway.models()) or "no model now"
        raise GatewayRefused(404, f"{error.reason} The gateway serves {served}", error.code) from None


def _store(settings: Settings) -> asyncio.Future[_Modules] | None:
    """What reads the store, loaded while the answer is waited for: SQLAlchemy takes a while. None: no store."""
    if surely_missing(settings):
        return None
    return asyncio.ensure_future(asyncio.to_thread(_load))


def _load() -> _Modules:
    from services.audit import database, explain

    return _Modules(database, explain)


@dataclass(frozen=True, slots=True)
class _Modules:
    database: Any
    explain: Any


async def _audited(store: _Modules, settings: Settings, request_id: str) -> Attempt | None:
    """The last attempt with its outcome, once it is in the store; None when the store does not have it in time."""
    if store.database.missing_file(settings) is not None:
        return None
    start = time.monotonic()
    found: Attempt | None = None
    engine = store.database.open_engine(settings)
    try:
        while time.monotonic() < start + (UNKNOWN_SECONDS if found is None else AUDIT_SECONDS):
            try:
                async with engine.connect() as connection:
                    found = (await store.explain.explain(connection, request_id))[0].attempts[-1]
                if found.decision is not None and (found.outcome or {}).get("status"):
                    return found
            except (store.explain.UnknownRequest, IndexError):
                pass
            await asyncio.sleep(AUDIT_PAUSE)
    except Exception:
        # Whatever is wrong with the store, the answer is here and is what was asked for.
        return None
    finally:
        await engine.dispose()
    return found


async def known_to_the_store(settings: Settings, request_id: str) -> bool | None:
    """Whether the store knows a request; None when there is no store to ask."""
    loading = _store(settings)
    if loading is None:
        return None
    store = await loading
    if store.database.missing_file(settings) is not None:
        return None
    engine = store.database.open_engine(settings)
    until = time.monotonic() + UNKNOWN_SECONDS
    try:
        while True:
            try:
                async with engine.connect() as connection:
                    await store.explain.explain(connection, request_id)
            except store.explain.UnknownRequest:
                if time.monotonic() >= until:
                    return False
                await asyncio.sleep(AUDIT_PAUSE)
            else:
                return True
    except Exception:
        return None  # a store that does not answer knows nothing
    finally:
        await engine.dispose()


def _result(
    answer: Answer, request_id: str, model: str, text: str, seconds: float, attempt: Attempt | None
) -> dict[str, Any]:
    decision = attempt.decision if attempt is not None else None
    details = answer.usage.get("prompt_tokens_details") or {}
    reported = details.get("cached_tokens")
    realised = (attempt.outcome or {}).get("cached_tokens") if attempt is not None else None
    return {
        "request_id": request_id,
        "model": model,
        "worker": answer.worker or (decision or {}).get("worker_id"),
        "attempt": int(answer.headers.get("x-kvroute-attempt") or (attempt.attempt if attempt else 1)),
        "answer": text,
        "usage": answer.usage,
        "realised_cached_tokens": realised if realised is not None else reported,
        "overlap": None if decision is None else _overlap(decision),
        "milliseconds": round(seconds * 1000, 1),
    }


def _overlap(decision: Mapping[str, Any]) -> dict[str, Any]:
    names = ("overlap_confirmed", "overlap_predicted", "usable_blocks", "total_blocks", "block_size",
             "predicted_tokens", "prompt_tokens", "mode", "reason")  # fmt: skip
    return {name: decision[name] for name in names}


def _summary(result: Mapping[str, Any], audit: bool) -> str:
    overlap, realised = result["overlap"], result["realised_cached_tokens"]
    parts = [f"worker {result['worker'] or 'unknown'}"]
    if overlap is not None:
        view = f"{overlap['mode']}: {overlap['reason']}" if overlap["reason"] else overlap["mode"]
        parts.append(f"overlap {overlap['overlap_confirmed']}/{overlap['total_blocks']} blocks ({view})")
        parts.append(f"predicted {overlap['predicted_tokens']} cached tokens")
    elif audit:
        parts.append("no decision in the audit store (KVROUTE_DATABASE_URL)")
    if realised is not None:
        parts.append(f"realised {realised}")
    parts.append(f"{result['milliseconds']:.0f} ms")
    return " · ".join(parts) + f"\nwhy: kvroute explain {result['request_id']}"
