"""Text as the store keeps it: no NUL (PostgreSQL has none), nothing that is not UTF-8, no URL query or payload."""

from __future__ import annotations

import math
from typing import Any

from services.runtime.logs import redact


def escaped(text: str) -> str:
    r"""The text with NUL written as ``\u0000`` and lone surrogates as ``\udxxx``."""
    if text.isascii() and "\x00" not in text:
        return text
    return text.replace("\x00", "\\u0000").encode("utf-8", "backslashreplace").decode()


def scrubbed(text: str) -> str:
    """Escaped, and without URL queries, user info and inline data, as in the logs."""
    return escaped(redact(text))


def escaped_json(value: Any) -> Any:
    """A JSON value with every string and key escaped; numbers that are not finite become null."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {escaped(str(name)): escaped_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [escaped_json(item) for item in value]
    return value
