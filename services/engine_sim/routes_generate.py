"""``POST /inference/v1/generate``: rendered tokens are run; the answer is tokens, or text beside them."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from schemas.media import MediaKind
from services.engine_sim import answer
from services.engine_sim.asked import REQUEST_HEADER, SESSION_HEADER, Asked, parse_cache_salt, parse_rank
from services.engine_sim.backend import Backend, Submitted
from services.engine_sim.errors import ApiError, bad_request, internal
from services.engine_sim.expand import Prompt
from services.engine_sim.request import MediaSpan
from services.engine_sim.routes_chat import BACKEND, arrived, json_response, read_body, send
from services.engine_sim.text import Detokenizer
from services.layout.shapes import MediaShape


async def generate(request: web.Request) -> web.StreamResponse:
    """Run rendered tokens. The media's names are taken as they come and stand in the events verbatim."""
    backend = request.app[BACKEND]
    body, _ = await read_body(request)
    lora = backend.adapter(body)
    token_ids = body.get("token_ids")
    if not isinstance(token_ids, list) or not all(isinstance(token, int) for token in token_ids):
        raise bad_request("token_ids is no list of integers", "token_ids")
    mode = body.get("output_mode") or "tokens"
    if mode not in ("tokens", "text"):
        raise bad_request(f"output_mode is {mode!r}, expected tokens or text"[:100], "output_mode")
    media = _spans(backend, body)
    asked = _asked(body, request)
    with backend.submit(Prompt(token_ids, media), asked, lora) as submitted:
        head = answer.Head(
            f"generate-tokens-{submitted.request.request_id}",
            lora or backend.config.name,
            backend.clock.now_ms() // 1000,
        )
        if asked.stream:
            return await _stream(request, backend, head, asked, submitted, text=mode == "text")
        await submitted.outputs.get()
        text = backend.tokenizer.decode(submitted.request.output_ids) if mode == "text" else None
        ranges = placeholders(media) if media else None
        return json_response(
            answer.generated(
                head, submitted.request, _details(submitted), ranges, token_ids=asked.return_token_ids, text=text
            )
        )


def placeholders(media: list[MediaSpan]) -> dict[str, list[dict[str, int]]]:
    """Where media stand, by modality."""
    ranges: dict[str, list[dict[str, int]]] = {}
    for span in media:
        ranges.setdefault(span.modality, []).append({"offset": span.offset, "length": span.length})
    return ranges


def _asked(body: dict[str, Any], request: web.Request) -> Asked:
    sampling = body.get("sampling_params") or {}
    options = body.get("stream_options") or {}
    return Asked(
        max_tokens=sampling.get("max_tokens"),
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        return_token_ids=bool(body.get("return_token_ids")),
        cache_salt=parse_cache_salt(body),
        session_id=request.headers.get(SESSION_HEADER),
        report_full=False,
        rank=parse_rank(request.headers),
        request_id=request.headers.get(REQUEST_HEADER) or body.get("request_id"),
    )


def _details(submitted: Submitted) -> answer.Details:
    return answer.Details(submitted.request.cached_tokens or 0, None, None)


async def _stream(
    request: web.Request, backend: Backend, head: answer.Head, asked: Asked, submitted: Submitted, *, text: bool
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    detokenizer = Detokenizer(backend.tokenizer)
    reason: str | None = None
    while reason is None:
        outputs = await arrived(submitted.outputs)
        token_ids = [output.token_id for output in outputs]
        reason = outputs[-1].finish_reason
        said = detokenizer.feed(token_ids) if text else None
        await send(response, answer.generated_chunk(head, token_ids, reason, said))
    if asked.include_usage:
        await send(response, answer.generated_usage(head, submitted.request, _details(submitted), text=text))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


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
