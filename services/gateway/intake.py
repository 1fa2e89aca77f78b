"""From an HTTP request to a record of ``requests``. Pure.

Only what the gateway itself needs is checked here (ids, deadlines, that the body is a JSON object): the media stage
checks the body once for all ways in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import orjson

from schemas.request import Claim, Request
from schemas.types import request_key
from services.runtime.errors import Refused
from services.runtime.json_bounds import MOST_VALUES, has_more_values

MAX_DEADLINE_MS = 600_000
_RELATIVE_BELOW = 10_000_000_000
_IDENTIFIER = re.compile(r"[A-Za-z0-9._:@+-]{1,128}")
_SALT_LIMIT = 256
_PRIORITY_LIMIT = 1 << 31
_MODES = ("url", "content", "validated")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client asked for, before it is published."""

    request_id: str
    tenant: str
    body: dict[str, Any]
    stream: bool
    cache_salt: str | None
    priority: int
    session_id: str | None
    identity: str | None
    created_at_ms: int
    deadline_ms: int
    route_only: bool = False
    book: bool = False

    @property
    def key(self) -> str:
        """Of the request in Kafka, and in the gateway's own register."""
        return request_key(self.tenant, self.request_id)

    @property
    def begins_soon(self) -> bool:
        """Whether its first piece tells how long requests wait: a whole answer comes only after its last token."""
        return self.stream or self.route_only

    def request(self, reply_to: str, claim: Claim | None = None) -> Request:
        """The record. With a claim the body itself stays out."""
        return Request(
            body={} if claim is not None else self.body,
            body_claim=claim,
            request_id=self.request_id,
            tenant=self.tenant,
            cache_salt=self.cache_salt,
            priority=self.priority,
            session_id=self.session_id,
            reply_to=reply_to,
            route_only=self.route_only,
            book=self.book,
            identity=self.identity,
            deadline_ms=self.deadline_ms,
            created_at_ms=self.created_at_ms,
        )


def read_body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises Refused (400): lone surrogates and broken UTF-8 are no JSON here."""
    if has_more_values(raw):
        raise Refused(400, f"the body has more than {MOST_VALUES:,} JSON values", code="too_complex")
    try:
        body = orjson.loads(raw)
    except (orjson.JSONDecodeError, RecursionError):
        raise Refused(400, "the body is not JSON in UTF-8", code="not_json") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body is not a JSON object", code="invalid_request")
    return body


def read_asked(
    headers: Mapping[str, str],
    body: dict[str, Any],
    *,
    tenant: str,
    now_ms: int,
    deadline_seconds: float,
    route_only: bool = False,
    book: bool = False,
) -> Asked:
    """Headers and body as one. Raises Refused (400; 504 for a deadline that has passed)."""
    salt = _salt(headers.get("X-Kvroute-Cache-Salt"), body)
    return Asked(
        request_id=identifier(headers, "X-Request-Id") or uuid4().hex,
        tenant=tenant,
        body=body,
        stream=body.get("stream") is True,
        cache_salt=salt,
        priority=_priority(headers.get("X-Kvroute-Priority"), body),
        session_id=identifier(headers, "X-Session-Id"),
        identity=_identity(headers.get("X-Kvroute-Identity")),
        created_at_ms=now_ms,
        deadline_ms=_deadline(headers.get("X-Kvroute-Deadline-Ms"), now_ms, deadline_seconds),
        route_only=route_only,
        book=book,
    )


def identifier(headers: Mapping[str, str], name: str) -> str | None:
    """An id in a header. Raises Refused (400)."""
    value = headers.get(name)
    if value is None:
        return None
    return checked_identifier(value, name)


def is_identifier(value: str) -> bool:
    """Whether a value may be a request or session id."""
    return _IDENTIFIER.fullmatch(value) is not None


def checked_identifier(value: str, name: str) -> str:
    """An id from outside. Raises Refused (400)."""
    if not is_identifier(value):
        raise Refused(
            400, f"{name} is not an id: expected 1 to 128 letters, digits, . _ : @ + or -", code="invalid_request"
        )
    return value


def _deadline(value: str | None, now_ms: int, default_seconds: float) -> int:
    """Milliseconds from now, or since the epoch: values of 10^10 and above are a point in time. At most 10 minutes."""
    if value is None:
        return now_ms + int(default_seconds * 1000)
    if not re.fullmatch(r"[0-9]{1,15}", value) or int(value) == 0:
        raise Refused(
            400, "X-Kvroute-Deadline-Ms is not a number of milliseconds, from now or since the epoch",
            code="invalid_request",
        )  # fmt: skip
    stated = int(value)
    deadline = min(stated if stated >= _RELATIVE_BELOW else now_ms + stated, now_ms + MAX_DEADLINE_MS)
    if deadline <= now_ms:
        raise Refused(
            504, f"the request's deadline passed {now_ms - deadline} ms ago", type="timeout_error",
            code="deadline_exceeded",
        )  # fmt: skip
    return deadline


def _salt(header: str | None, body: dict[str, Any]) -> str | None:
    stated = body.get("cache_salt")
    if header is None:
        return stated if isinstance(stated, str) and 0 < len(stated) <= _SALT_LIMIT else None
    if not 0 < len(header) <= _SALT_LIMIT:
        raise Refused(400, f"X-Kvroute-Cache-Salt has not 1 to {_SALT_LIMIT} characters", code="invalid_request")
    if stated is not None and stated != header:
        raise Refused(400, "X-Kvroute-Cache-Salt differs from the body's cache_salt", code="invalid_request")
    return header


def _priority(header: str | None, body: dict[str, Any]) -> int:
    if header is None:
        stated = body.get("priority")
        usable = isinstance(stated, int) and not isinstance(stated, bool) and abs(stated) < _PRIORITY_LIMIT
        return stated if usable and isinstance(stated, int) else 0
    if not re.fullmatch(r"-?[0-9]{1,9}", header):
        raise Refused(400, "X-Kvroute-Priority is not a whole number", code="invalid_request")
    return int(header)


def _identity(header: str | None) -> str | None:
    if header is not None and header not in _MODES:
        raise Refused(400, f"X-Kvroute-Identity is not one of {', '.join(_MODES)}", code="invalid_request")
    return header
