"""The W3C ``traceparent`` of the record at hand, carried from what is handled to what is sent because of it."""

from __future__ import annotations

from contextvars import ContextVar

HEADER = "traceparent"
current: ContextVar[str | None] = ContextVar("kvroute_traceparent", default=None)


def of_headers(headers: tuple[tuple[str, bytes], ...]) -> str | None:
    """The traceparent among a record's headers, if it looks like one (55 ASCII characters)."""
    for name, value in headers:
        if name == HEADER and len(value) == 55 and value.isascii():
            return value.decode()
    return None
