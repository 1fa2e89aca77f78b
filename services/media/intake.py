"""From a record of ``requests`` to a request that later stages can trust. Pure.

What can't be read is a bad record (dead letter); what can be read and is wrong is refused with an OpenAI error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError
from xxhash import xxh3_64_hexdigest

from schemas.request import Envelope, Request
from services.runtime.bus import Record
from services.runtime.errors import BadRecord, KvrouteError, Refused
from services.runtime.json_bounds import MOST_VALUES, has_more_values

MAX_DEADLINE_MS = 600_000
_CLOCK_SKEW_MS = 60_000
_MODEL_LIMIT = 256
_SALT_LIMIT = 256
_RECOVER_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who waits for the answer to a record that could not be read: enough to refuse it."""

    request_id: str
    tenant: str
    reply_to: str
    created_at_ms: int


class Unreadable(KvrouteError):
    """A bad record, and who should hear of it if that could be read."""

    def __init__(self, bad: BadRecord, waiting: Waiting | None) -> None:
        super().__init__(str(bad))
        self.bad = bad
        self.waiting = waiting


def read_request(record: Record) -> Request:
    """Decode a record's value. Raises Unreadable for what is no request: not JSON, null, wrong types, bad reply_to."""
    if not record.value:
        raise Unreadable(BadRecord("empty", "the record has no value, expected a JSON object with a body"), None)
    if has_more_values(record.value):
        bad = BadRecord("too_complex", f"the record has more than {MOST_VALUES:,} JSON values: it is not parsed")
        raise Unreadable(bad, None)
    try:
        value = orjson.loads(record.value)
    except (orjson.JSONDecodeError, RecursionError) as error:
        bad = BadRecord("not_json", f"the record is not JSON in UTF-8: {_short(error)}")
        raise Unreadable(bad, _recover_sloppily(record)) from None
    if not isinstance(value, dict):
        bad = BadRecord("not_an_object", f"the record is a JSON {_kind(value)}, expected an object with a body")
        raise Unreadable(bad, None)
    if "body" not in value and "body_claim" not in value:
        raise Unreadable(
            BadRecord("invalid_message", "the record has no body, expected the OpenAI request under body"),
            _recover(value, record),
        )
    try:
        return Request.model_validate(value)
    except ValidationError as error:
        raise Unreadable(BadRecord("invalid_message", _say(error)), _recover(value, record)) from None
    except RecursionError:
        bad = BadRecord("too_deep", "the record nests deeper than can be handled")
        raise Unreadable(bad, _recover(value, record)) from None


def parse_body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body that was kept outside its record. Raises Refused (400)."""
    if has_more_values(raw):
        raise Refused(400, f"the body has more than {MOST_VALUES:,} JSON values", code="too_complex")
    try:
        body = orjson.loads(raw)
    except (orjson.JSONDecodeError, RecursionError):
        raise Refused(400, "the body is not JSON in UTF-8", code="not_json") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body is not a JSON object", code="invalid_request")
    return body


def request_id_of(request: Request, record: Record) -> str:
    """Its own id, or one that stays the same when the record is read again."""
    return request.request_id or xxh3_64_hexdigest(f"{record.topic}-{record.partition}-{record.offset}".encode())


def created_at_of(request: Request, record: Record, now_ms: int) -> int:
    """When the request was accepted: what its sender says, else the record's timestamp; never in the future.

    A producer whose clock runs ahead by more than a minute would otherwise buy itself a longer deadline.
    """
    for stated in (request.created_at_ms, record.timestamp_ms):
        if stated is not None and 0 < stated <= now_ms + _CLOCK_SKEW_MS:
            return stated
    return now_ms


def deadline_of(request: Request, created_at_ms: int, default_seconds: float) -> int:
    """Wall milliseconds: as stated, but at most 10 minutes after the request was created."""
    stated = request.deadline_ms
    if stated is None:
        stated = created_at_ms + int(default_seconds * 1000)
    return max(0, min(stated, created_at_ms + MAX_DEADLINE_MS))


def envelope_of(
    request: Request, record: Record, body: dict[str, Any], *, now_ms: int, deadline_seconds: float
) -> Envelope:
    """The fields every stage carries along. Does not look at the body beyond model, stream and cache_salt.

    They are taken leniently (an empty model, stream off) so that a body that is refused can be answered: see
    :func:`check_body`.
    """
    created_at_ms = created_at_of(request, record, now_ms)
    model = body.get("model")
    return Envelope(
        request_id=request_id_of(request, record),
        tenant=request.tenant,
        model=model[:_MODEL_LIMIT] if isinstance(model, str) else "",
        cache_salt=_salt(request, body),
        lora=request.lora,
        priority=request.priority,
        session_id=request.session_id,
        reply_to=request.reply_to,
        route_only=request.route_only,
        book=request.book,
        stream=body.get("stream") is True,
        deadline_ms=deadline_of(request, created_at_ms, deadline_seconds),
        created_at_ms=created_at_ms,
    )


def check_body(request: Request, body: dict[str, Any]) -> None:
    """Raise Refused (400) when a field this stage reads is wrong; what only engines read is left to them."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise invalid(f"model is {_found(body, 'model')}, expected the name of a model", "model")
    if len(model) > _MODEL_LIMIT:
        raise invalid(f"model has {len(model)} characters, expected at most {_MODEL_LIMIT}", "model")
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise invalid(f"stream is {_found(body, 'stream')}, expected true or false", "stream")
    salt = body.get("cache_salt")
    if salt is None:
        return
    if not isinstance(salt, str) or not 0 < len(salt) <= _SALT_LIMIT:
        raise invalid(f"cache_salt is {_found(body, 'cache_salt')}, expected 1 to {_SALT_LIMIT} characters of text",
                      "cache_salt")  # fmt: skip
    if request.cache_salt and request.cache_salt != salt:
        raise invalid("cache_salt of the body differs from that of the request, expected one of them", "cache_salt")


def invalid(message: str, param: str = "") -> Refused:
    """A 400 that names the field it is about."""
    shown = message if param in message else f"{param}: {message}"
    return Refused(400, shown, code="invalid_request")


def _salt(request: Request, body: dict[str, Any]) -> str | None:
    salt = body.get("cache_salt")
    return request.cache_salt or (salt if isinstance(salt, str) and 0 < len(salt) <= _SALT_LIMIT else None)


def _recover(value: dict[str, Any], record: Record) -> Waiting | None:
    """Who waits, read from an object that is no request: the three fields alone must be valid."""
    wanted = {name: value.get(name) for name in ("request_id", "tenant", "reply_to") if value.get(name) is not None}
    if "request_id" not in wanted or "reply_to" not in wanted:
        return None
    try:
        request = Request.model_validate(wanted)
    except ValidationError:
        return None
    if request.request_id is None or request.reply_to is None:
        return None
    return Waiting(request.request_id, request.tenant, request.reply_to, max(record.timestamp_ms, 0))


def _recover_sloppily(record: Record) -> Waiting | None:
    """Who waits, read by the lenient parser of the standard library (it takes lone surrogates and NaN)."""
    raw = record.value or b""
    if len(raw) > _RECOVER_LIMIT:
        return None
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return _recover(value, record) if isinstance(value, dict) else None


def _say(error: ValidationError) -> str:
    """What was expected where, without what was found: that may be anybody's text."""
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    first = [f"{'.'.join(str(step) for step in problem['loc'])[:80]}: {problem['msg']}" for problem in problems[:3]]
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return f"not a {Request.SCHEMA}: {'; '.join(first)}{more}"


def _short(error: Exception) -> str:
    return str(error)[:160] if isinstance(error, orjson.JSONDecodeError) else "nested too deep"


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "number"


def _found(body: dict[str, Any], name: str) -> str:
    if name not in body:
        return "missing"
    value = body[name]
    if isinstance(value, dict):
        return "an object"
    return "an empty string" if value == "" else f"a JSON {_kind(value)}"
