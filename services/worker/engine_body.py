"""The request as the engine gets it: the client's body, with our identities, bytes and reports put in. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from schemas.media import MediaKind
from schemas.work import SampledFrames, Work
from services.kv.frames import frames_kwargs
from services.kv.identity import engine_uuid
from services.runtime.errors import BadRecord
from services.worker.sessions import HEADER, take_session

_FIELDS = {MediaKind.IMAGE: "image_url", MediaKind.VIDEO: "video_url", MediaKind.AUDIO: "audio_url"}


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What is posted. ``usage_wanted``: the client asked for the usage chunk of a stream itself."""

    body: bytes
    headers: dict[str, str]
    stream: bool
    usage_wanted: bool
    session: str | None = None
    """What the engine is told as the request's session."""


def build(
    work: Work, body_text: str | bytes, data_uris: Mapping[int, str], *, ranks: int,
    uuid: Callable[[int], str] = engine_uuid, own_session: str | None = None,
    frames: SampledFrames | None = None,
) -> EngineRequest:  # fmt: skip
    """Make the engine's request. ``data_uris`` replaces URLs, by index in ``work.media``.

    ``own_session`` is the session id of a request whose client names none. ``frames`` are those that ``data_uris``
    has in place of the request's one video.

    Raises BadRecord when the body is not an object or a medium does not stand where the work says.
    """
    try:
        body = orjson.loads(body_text)
    except orjson.JSONDecodeError as error:
        raise BadRecord("invalid_body", f"work {work.key}: the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRecord("invalid_body", f"work {work.key}: the body is {type(body).__name__}, expected an object")
    for index, medium in enumerate(work.media):
        field = _FIELDS.get(medium.kind)
        part = _part(work, body, medium.message, medium.part)
        if medium.identity is not None:
            part["uuid"] = uuid(medium.identity)
        if index in data_uris and field is not None:
            stated = part.get(field)
            part[field] = {**(stated if isinstance(stated, dict) else {}), "url": data_uris[index]}
    body["model"] = work.lora or body.get("model") or work.model
    if work.cache_salt is not None:
        body["cache_salt"] = work.cache_salt
    if frames is not None:
        _say_frames(body, frames)
    _remove_report_mode(body)
    usage_wanted = _ask_for_usage(body, work.stream)
    session = take_session(body, work.session_id, work.tenant, own_session)
    return EngineRequest(orjson.dumps(body), _headers(work, ranks, session), work.stream, usage_wanted, session)


def _part(work: Work, body: dict[str, Any], message: int, part: int) -> dict[str, Any]:
    try:
        found = body["messages"][message]["content"][part]
    except (KeyError, IndexError, TypeError):
        found = None
    if not isinstance(found, dict):
        raise BadRecord("invalid_body", f"work {work.key}: no content part {part} in message {message} of the body")
    return found


def frames_to_send(work: Work) -> dict[int, SampledFrames]:
    """The frames of the one video of a work order, by its index; what is said of videos is said of all of them."""
    if sum(medium.kind is MediaKind.VIDEO for medium in work.media) != 1:
        return {}
    return {
        index: medium.frames
        for index, medium in enumerate(work.media)
        if medium.frames is not None and medium.identity is not None
    }


def _say_frames(body: dict[str, Any], frames: SampledFrames) -> None:
    """Exactly these frames, and which they are. A client who has a say in it is not exact, and gets no frames."""
    given = body.get("media_io_kwargs")
    body["media_io_kwargs"] = (given if isinstance(given, dict) else {}) | {
        "video": frames_kwargs(
            frames.indices, fps=frames.fps, total_frames=frames.total_frames, duration=frames.duration
        )
    }


def _remove_report_mode(body: dict[str, Any]) -> None:
    """``full`` announces cache hits again without new copies, and every count of copies would be wrong."""
    extra = body.get("vllm_xargs")
    if isinstance(extra, dict) and "kv_cache_report_mode" in extra:
        extra = {name: value for name, value in extra.items() if name != "kv_cache_report_mode"}
        if extra:
            body["vllm_xargs"] = extra
        else:
            del body["vllm_xargs"]


def _ask_for_usage(body: dict[str, Any], stream: bool) -> bool:
    """Usage comes with every answer, since it says what was cached; whether the client asked for it too."""
    if not stream:
        body.pop("stream", None)
        body.pop("stream_options", None)
        return True
    body["stream"] = True
    options = body.get("stream_options")
    options = dict(options) if isinstance(options, dict) else {}
    wanted = bool(options.get("include_usage"))
    if not wanted:
        options.pop("continuous_usage_stats", None)
    body["stream_options"] = {**options, "include_usage": True}
    return wanted


def _headers(work: Work, ranks: int, session: str | None) -> dict[str, str]:
    # Two tenants may use one id, and an attempt may come back to this engine while it ends the one before. A slash is
    # in neither name: were the tenant set off by what a request id may hold, one tenant could name another's requests.
    tenant = f"{work.tenant}/" if work.tenant else ""
    headers = {"X-Request-Id": f"{tenant}{work.request_id}-{work.attempt}"}
    if ranks > 1:
        headers["X-data-parallel-rank"] = str(work.dp_rank)
    if session is not None:
        headers[HEADER] = session
    return headers
