"""Routes that tell token ids: ``/tokenize`` and ``/v1/chat/completions/render``."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from aiohttp import web

from services.engine_sim.asked import REQUEST_HEADER, parse_cache_salt
from services.engine_sim.backend import Backend
from services.engine_sim.errors import bad_request
from services.engine_sim.expand import Prompt
from services.engine_sim.routes_chat import BACKEND, json_response, read_body
from services.engine_sim.routes_generate import generate, placeholders

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
    """Register the routes; what is rendered and generated only with ``--enable-scale-out``."""
    app.router.add_post("/tokenize", tokenize)
    if app[BACKEND].config.scale_out:
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
            "stream": bool(body.get("stream")),
            "stream_options": body.get("stream_options") if body.get("stream") else None,
            "cache_salt": parse_cache_salt(body),
            "priority": 0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
        }
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
        "mm_placeholders": placeholders(list(prompt.media)),
        "kwargs_data": inputs,
        "mm_metadata": inputs,
    }
