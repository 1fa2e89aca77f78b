"""The fields of a chat body that decide how it is run, checked as vLLM checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.engine_sim.errors import bad_request

SESSION_HEADER = "X-Session-ID"
RANK_HEADER = "X-data-parallel-rank"
REQUEST_HEADER = "X-Request-Id"


@dataclass(frozen=True, slots=True)
class Asked:
    """How a request wants to be run and answered."""

    max_tokens: int | None
    stream: bool
    include_usage: bool
    return_token_ids: bool
    cache_salt: str | None
    session_id: str | None
    report_full: bool
    rank: int | None
    request_id: str | None


def parse_asked(body: Mapping[str, Any], headers: Mapping[str, str]) -> Asked:
    """Read the fields. Raises ApiError naming the one that is wrong."""
    if body.get("n") not in (None, 1):
        raise bad_request(f"n is {body['n']!r}: the simulated engine gives one choice", "n")
    xargs = _object(body, "vllm_xargs")
    stream = _flag(body, "stream")
    stream_options = _object(body, "stream_options")
    if stream_options and not stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    return Asked(
        max_tokens=_positive(body, "max_completion_tokens") or _positive(body, "max_tokens"),
        stream=stream,
        include_usage=bool(stream_options.get("include_usage")),
        return_token_ids=_flag(body, "return_token_ids"),
        cache_salt=parse_cache_salt(body),
        session_id=body.get("session_id") or headers.get(SESSION_HEADER) or xargs.get("session_id") or None,
        report_full=xargs.get("kv_cache_report_mode") == "full",
        rank=parse_rank(headers),
        request_id=headers.get(REQUEST_HEADER),
    )


def parse_cache_salt(body: Mapping[str, Any]) -> str | None:
    """The cache salt, if there is one. Raises ApiError for an empty one."""
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise bad_request("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    return salt


def parse_rank(headers: Mapping[str, str]) -> int | None:
    """The data-parallel rank a header asks for; what is no number is ignored, as vLLM does."""
    try:
        return int(headers[RANK_HEADER])
    except (KeyError, ValueError):
        return None


def _positive(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise bad_request(f"{name} must be at least 1, got {value!r}."[:200], name)
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad_request(f"{name} is {value!r}, expected true or false"[:200], name)
    return bool(value)


def _object(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise bad_request(f"{name} is {type(value).__name__}, expected an object", name)
    return value or {}
