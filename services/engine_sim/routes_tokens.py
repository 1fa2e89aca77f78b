"""Routes that speak token ids: ``/tokenize``, ``/v1/chat/completions/render`` and ``/inference/v1/generate``."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from aiohttp import web

from schemas.media import MediaKind
from services.engine_sim import answer
from services.engine_sim.asked import REQUEST_HEADER, SESSION_HEADER, Asked, parse_cache_salt, parse_rank
from services.engine_sim.backend import Backend
from services.engine_sim.errors import ApiError, bad_request, internal
from services.engine_sim.expand import Prompt
from services.engine_sim.request import MediaSpan
from services.engine_sim.routes_chat import BACKEND, json_response, read_body
from services.layout.shapes import MediaShape

_SAMPLING = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "stop": [],
    "stop_token_ids": [],
    "output_kind": 2,
    "skip_clone": True,
    "bad_words": [],
    "skip_reading_prefix_cache": False,
}


def add_token_routes(app: web.Application) -> None:
    """Register the routes."""
    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/v1/chat/completions/render", render)
    app.router.add_post("/inference/v1/generate", generate)


async def tokenize(request: web.Request) -> web.Response:
    """Token ids of a chat, media expanded, or of a plain prompt."""
    backend = request.app[BACKEND]
    body, size = await read_body(request)
    backend.adapter(body)
    if "messages" in body:
        token_ids = (await backend.expander.expand_chat(body, size)).token_ids
    else:
        token_ids = _encode(backend, body)
    strings = [backend.tokenizer.id_to_token(token_id) for token_id in token_ids] if _asks_strings(body) else None
    return json_response(
        {"count": len(token_ids), "max_model_len": backend.max_model_len, "tokens": token_ids, "token_strs": strings}
    )


async def render(request: web.Request) -> web.Response:
    """A chat's tokens and media, without running it. ``mm_payload: none`` leaves the processed inputs out."""
    backend = request.app[BACKEND]
    body, size = await read_body(request)
    lora = backend.adapter(body)
    prompt = await backend.expander.expand_chat(body, size)
    sampling = {**_SAMPLING, "max_tokens": body.get("max_tokens") or backend.max_model_len - len(prompt.token_ids)}
    request_id = request.headers.get(REQUEST_HEADER) or uuid4().hex[:16]
    return json_response(
        {
            "request_id": f"chatcmpl-{request_id}",
            "token_ids": prompt.token_ids,
            "token_offsets": None,
            "features": _features(prompt, payload=body.get("mm_payload") != "none"),
            "content_parts": None,
            "sampling_params": sampling,
            "model": lora or backend.config.name,
            "reasoning_ended": None,
            "reasoning_parser_kwargs": None,
            "return_token_ids": None,
            "output_mode": "tokens",
            "stream": False,
            "stream_options": None,
            "cache_salt": parse_cache_salt(body),
            "priority": 0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
        }
    )


async def generate(request: web.Request) -> web.Response:
    """Run rendered tokens. The media's names are taken as they come and stand in the events verbatim."""
    backend = request.app[BACKEND]
    body, _ = await read_body(request)
    lora = backend.adapter(body)
    token_ids = body.get("token_ids")
    if not isinstance(token_ids, list) or not all(isinstance(token, int) for token in token_ids):
        raise bad_request("token_ids is no list of integers", "token_ids")
    if body.get("stream"):
        raise ApiError(501, "the simulated engine does not stream tokens", "NotImplementedError", "stream")
    media = _spans(backend, body)
    sampling = body.get("sampling_params") or {}
    asked = Asked(
        max_tokens=sampling.get("max_tokens"),
        stream=False,
        include_usage=False,
        return_token_ids=bool(body.get("return_token_ids")),
        cache_salt=parse_cache_salt(body),
        session_id=request.headers.get(SESSION_HEADER),
        report_full=False,
        rank=parse_rank(request.headers),
        request_id=request.headers.get(REQUEST_HEADER) or body.get("request_id"),
    )
    with backend.submit(Prompt(token_ids, media), asked, lora) as submitted:
        await submitted.outputs.get()
        head = answer.Head(
            f"generate-tokens-{submitted.request.request_id}",
            lora or backend.config.name,
            backend.clock.now_ms() // 1000,
        )
        details = answer.Details(submitted.request.cached_tokens or 0, None, None)
        placeholders = _placeholders(media) if media else None
        return json_response(
            answer.generated(head, submitted.request, details, placeholders, token_ids=asked.return_token_ids)
        )


def _encode(backend: Backend, body: dict[str, Any]) -> list[int]:
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise bad_request("expected messages or a prompt", "prompt")
    try:
        special = body.get("add_special_tokens", True) is not False
        encoding = backend.tokenizer.encode(prompt, add_special_tokens=special)
    except (UnicodeEncodeError, TypeError) as error:
        raise bad_request(f"the prompt is not valid Unicode: {error}", "prompt") from None
    found: list[int] = encoding.ids
    return found


def _asks_strings(body: dict[str, Any]) -> bool:
    return body.get("return_token_strs") is True


def _placeholders(media: list[MediaSpan]) -> dict[str, list[dict[str, int]]]:
    ranges: dict[str, list[dict[str, int]]] = {}
    for span in media:
        ranges.setdefault(span.modality, []).append({"offset": span.offset, "length": span.length})
    return ranges


def _features(prompt: Prompt, *, payload: bool) -> dict[str, Any] | None:
    if not prompt.media:
        return None
    names: dict[str, list[str]] = {}
    for span in prompt.media:
        names.setdefault(span.modality, []).append(span.identifier)
    # The processed inputs are opaque to whoever passes them on; here they are only a sign that they are there.
    inputs = {modality: ["simulated"] * len(found) for modality, found in names.items()} if payload else None
    return {
        "mm_hashes": names,
        "mm_placeholders": _placeholders(list(prompt.media)),
        "kwargs_data": inputs,
        "mm_metadata": inputs,
    }


def _spans(backend: Backend, body: dict[str, Any]) -> list[MediaSpan]:
    if body.get("content_parts"):
        _refuse_content_parts(body["content_parts"])
    features = body.get("features") or {}
    try:
        spans = [
            MediaSpan(modality, names[index], place["offset"], place["length"])
            for modality, names in (features.get("mm_hashes") or {}).items()
            for index, place in enumerate(features["mm_placeholders"][modality])
        ]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise bad_request(f"features is malformed: {error!r}", "features") from None
    carried = features.get("kwargs_data") or {}
    for span in spans:
        _admit(backend, span, carried=span.modality in carried)
    return sorted(spans, key=lambda span: span.offset)


def _admit(backend: Backend, span: MediaSpan, *, carried: bool) -> None:
    """A medium comes with its processed inputs or is in the cache; vLLM has no better answer than 500 else."""
    cache = backend.expander.processor_cache
    if cache.get(span.identifier) is not None:
        return
    if not carried:
        raise internal()
    cache.put(span.identifier, MediaShape(MediaKind(span.modality)))


def _refuse_content_parts(parts: list[dict[str, Any]]) -> None:
    """An engine reads ``url`` at the top of a part only: one in OpenAI's form is a medium without data."""
    index = {"image_url": 0, "video_url": 0}
    for part in parts:
        kind = str(part.get("type"))
        if kind in index and part.get("url") is None:
            modality = kind.removesuffix("_url")
            raise bad_request(f"Cache miss for {modality} at index {index[kind]} but data is not provided.")
    raise ApiError(501, "the simulated engine expands no content_parts: render first", "NotImplementedError")
