"""``kvroute inspect FILE|URL``: what the router sees in an image or a video, and whether it is exact."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from services.cli.session import Session, command_options, examples
from services.cli.shipped import shipped_folder
from services.runtime.errors import KvrouteError

if TYPE_CHECKING:
    from services.cli.laid_out import Laid
    from services.media.looked_at import LookedAt
    from services.runtime.settings import Settings


@click.command(
    epilog=examples(
        "kvroute inspect photo.jpg",
        "kvroute inspect clip.mp4 --model qwen3-vl --sheet frames.png",
        "kvroute inspect https://example.com/a.png --model qwen2.5-vl --json",
    )
)
@click.argument("place", metavar="FILE|URL")
@click.option(
    "--model", default="", help="Served model; its folder (KVROUTE_MODELS, KVROUTE_MODELS_DIR, kvroute up's) is read."
)
@click.option(
    "--model-dir", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Model folder, instead."
)
@click.option(
    "--sheet",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PNG",
    help="Write a picture of what was hashed.",
)
@command_options
def inspect(session: Session, place: str, model: str, model_dir: Path | None, sheet: Path | None) -> None:
    """Show what the router sees: format, size, frames, identities, the tokens in its place, exact or why not.

    A URL is fetched as the media stage fetches it. Nothing is asked of workers: exact here means that their probes
    decide. Exactness of a video needs a model, whose rule says which frames are taken. What the engine is told depends
    on the identity mode (KVROUTE_IDENTITY, KVROUTE_IDENTITY_BY_MODEL); of a file, url identity is that of the data: URI
    `kvroute send` makes of it.
    """
    model_dir = model_dir or shipped_folder(session.settings, model)
    if model_dir is not None:
        model = model or model_dir.name
        session.overrides = {"models": {**session.settings.models, model: str(model_dir)}}
        del session.loaded
    found = session.run(_inspect(session.settings, place, model))
    if sheet is not None:
        _write_sheet(found, sheet)
    laid = _laid_out(session.settings, model, found) if model else None
    result = _result(session.settings, place, model, found, laid)
    if session.out.json:
        session.out.value(result)
    else:
        session.out.draw(*_lines(result, laid))


async def _inspect(settings: Settings, place: str, model: str) -> LookedAt:
    from services.media.looked_at import look_at
    from services.media.video import VideoBounds
    from services.media.video_rules import VideoRules
    from services.runtime.offload import run_in_thread

    data = await _bytes_of(settings, place)
    bounds = VideoBounds(settings.media_max_pixels, settings.video_max_pixels, settings.video_decode_seconds)
    return await run_in_thread(look_at, data, partial(VideoRules(settings).of, model), bounds)


async def _bytes_of(settings: Settings, place: str) -> bytes:
    """Raises KvrouteError: the fence's refusal, what made fetching fail, or no such file."""
    from services.media.data_uri import is_data_uri, parse_data_uri

    if is_data_uri(place):
        return parse_data_uri(place, settings.media_max_bytes).data
    if place[:5].lower() in ("http:", "https"):
        return await _fetch(settings, place)
    return _read(place)


def _read(place: str) -> bytes:
    from services.cli.chat import BadMedium

    try:
        return Path(place).expanduser().read_bytes()
    except OSError as error:
        raise BadMedium(f"{place} is neither a URL (http, https, data) nor a readable file: {error.strerror}") from None


async def _fetch(settings: Settings, url: str) -> bytes:
    from services.media.connect import FencedResolver, open_session, rules_of
    from services.media.fetch import Fetcher
    from services.media.memory import MemoryBudget
    from services.runtime.clock import SystemClock

    rules = rules_of(settings)
    resolver = FencedResolver(rules, SystemClock())
    budget = MemoryBudget(settings.media_memory_bytes)
    try:
        async with open_session(settings, resolver) as http:
            with budget.hold() as hold:
                fetched = await Fetcher(http, resolver, rules, settings, budget).whole(url, hold)
    finally:
        await resolver.close()
    if fetched.data is None:
        raise KvrouteError("the server sent no body")
    return fetched.data


def _laid_out(settings: Settings, model: str, found: LookedAt) -> Laid:
    from services.cli.laid_out import lay_alone
    from services.layout.cards import Cards

    problems: list[str] = []
    layouter = Cards.of(settings, on_problem=lambda _, what: problems.append(what)).get(model)
    if layouter is None:
        what = (
            "; ".join(problems)
            or f"no folder is known for {model}: give --model-dir FOLDER or set KVROUTE_MODELS={model}=FOLDER"
        )
        raise KvrouteError(f"the model can't be laid out: {what}")
    return lay_alone(layouter, found.item())


def _write_sheet(found: LookedAt, file: Path) -> None:
    from services.media.sheet import contact_sheet

    if not found.pictures:
        raise KvrouteError(f"nothing was hashed, so there is nothing to show: {found.detail or found.reason}")
    file.write_bytes(contact_sheet(found.pictures))


def _identities(settings: Settings, place: str, model: str, found: LookedAt) -> dict[str, str | None]:
    """The medium's identity in each mode, and what the mode in force tells the engine, without tenant and salt.

    A file's URL is the data: URI `kvroute send` makes of it. Videos are told apart by their content in every mode.
    """
    from schemas.media import MediaKind
    from services.cli.chat import BadMedium, media_url
    from services.kv.identity import engine_uuid, url_identity
    from services.media.modes import Mode, Modes

    image = found.kind is MediaKind.IMAGE
    mode = Modes(settings).of(model, None) if image else Mode.CONTENT
    try:
        by_url = url_identity(media_url(place, found.kind.value)) if image else None
    except BadMedium:
        by_url = None  # larger than what is sent inline
    # What a server says of its copy (ETag, time) is part of a validated identity: it is not known from a file.
    told = {Mode.CONTENT: found.identity, Mode.URL: by_url, Mode.VALIDATED: None}[mode]
    return {
        "content": None if found.identity is None else f"{found.identity:016x}",
        "url": None if by_url is None else f"{by_url:016x}",
        "mode": mode.value,
        "told_the_engine": None if told is None or found.reason is not None else engine_uuid(told),
    }


def _result(settings: Settings, place: str, model: str, found: LookedAt, laid: Laid | None) -> dict[str, Any]:
    reason = found.reason or (laid.reason if laid is not None else None)
    detail = found.detail or (laid.detail if laid is not None else None)
    shown = {
        name: value
        for name, value in (
            ("kind", found.kind), ("format", found.format), ("mode", found.mode), ("size_bytes", found.size_bytes),
            ("width", found.width), ("height", found.height), ("total_frames", found.total_frames),
            ("fps", found.fps), ("duration", found.duration), ("sampling", found.sampling),
            ("frame_indices", found.frame_indices), ("timestamps", found.seconds),
        )
        if value is not None
    }  # fmt: skip
    return {
        "place": place if len(place) <= 200 else place[:199] + "…",
        "model": model or None,
        **shown,
        "identities": _identities(settings, place, model, found),
        "layout": None if laid is None else asdict(laid),
        "exact": reason is None,
        "reason": reason,
        "detail": detail,
    }


def _lines(result: dict[str, Any], laid: Laid | None) -> list[Any]:
    from rich.table import Table
    from rich.text import Text

    from services.cli.laid_out import line_of
    from services.cli.output import shown

    table = Table(show_header=False, box=None, pad_edge=False)
    rows = [(name, value) for name, value in result.items() if name not in ("identities", "layout", "exact", "detail")]
    known = result["identities"]
    rows[-1:] = [("identity by content", known["content"]), ("identity by url", known["url"]),
                 (f"told the engine in {known['mode']} mode", known["told_the_engine"])]  # fmt: skip
    if laid is not None:
        rows += [("layout", laid.variant), ("tokens", laid.length), ("of them vision", laid.vision_tokens)]
        rows += [("prompt", line_of(laid.runs))] if laid.runs else []
    rows.append(("exact", "yes, once workers have proven it" if result["exact"] else f"no: {result['reason']}"))
    rows.append(("why", result["detail"]))
    for name, value in rows:
        if value is not None:
            listed = ", ".join(map(shown, value)) if isinstance(value, list) else shown(value)
            table.add_row(Text(name.replace("_", " "), "dim"), Text(listed))
    return [table]
