"""Structured logs: readable on a terminal, JSON elsewhere, no secrets in either.

Redaction is a processor, so no caller has to think of it: URL queries, user info in URLs and data: URIs never pass.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import orjson
import structlog

from services.runtime.settings import Settings

_URL = re.compile(r"([a-z][a-z0-9+.-]{0,20}://)([^\s\"'<>]*)", re.IGNORECASE)
_DATA_URI = re.compile(r"data:([a-z0-9.+/-]{0,60})[;,][^\s\"'<>]*", re.IGNORECASE)
_LONGEST = 4096
_MOST_SAID = 1000
_NOISY = ("aiokafka", "kvroute.faststream", "aiohttp.access", "asyncio", "PIL", "alembic", "sqlalchemy")


def redact(text: str) -> str:
    """The text without URL queries, user info and inline data, and at most 4,096 characters of it."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}… ({len(text)} characters)"
    if ":" not in text:
        return text
    # Each pattern eats what it matched, so time is linear in the text, whatever a stranger wrote into it.
    return _URL.sub(_bare_url, _DATA_URI.sub(r"data:\1,…", text))


class OnceInAWhile(logging.Filter):
    """Lets a library say the same thing once in ten seconds: a broker that is away is hundreds of lines a second."""

    def __init__(self, libraries: tuple[str, ...], seconds: float = 10.0) -> None:
        super().__init__()
        self._libraries = libraries
        self._seconds = seconds
        self._said: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line passes; one that passes after others were held back says how many."""
        if not record.name.startswith(self._libraries):
            return True
        key = (record.name, str(record.msg)[:80])
        until, held_back = self._said.get(key, (0.0, 0))
        if record.created < until:
            self._said[key] = (until, held_back + 1)
            return False
        if len(self._said) > _MOST_SAID:
            self._said.clear()
        self._said[key] = (record.created + self._seconds, 0)
        if held_back:
            record.msg = f"{record.msg} [and {held_back} more like this]"
        return True


def _bare_url(match: re.Match[str]) -> str:
    scheme, rest = match.groups()
    rest, query, _ = rest.partition("?")
    authority, slash, path = rest.partition("/")
    if "@" in authority:
        authority = f"…@{authority.rpartition('@')[2]}"
    return f"{scheme}{authority}{slash}{path}{'?…' if query else ''}"


def setup_logging(settings: Settings) -> None:
    """Send structlog and the standard library's logging to stderr in one format. Call once, at the entry point."""
    console = settings.log_format == "console" or (settings.log_format == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if console else "iso", utc=not console),
        structlog.processors.StackInfoRenderer(),
    ]
    last: list[structlog.typing.Processor] = (
        [_redact_event, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
        if console
        else [structlog.processors.format_exc_info, _redact_event, structlog.processors.JSONRenderer(_dumps)]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    handler.addFilter(OnceInAWhile(("aiokafka", "kvroute.faststream")))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    level = getattr(logging, settings.log_level.upper())
    root.setLevel(level)
    for name in _NOISY:
        logging.getLogger(name).setLevel(level if settings.log_level == "debug" else logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger. ``name`` says which part speaks, such as ``router.index``."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(f"kvroute.{name}")
    return logger


def _redact_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = redact(value)
        elif isinstance(value, Exception):
            event[key] = redact(f"{type(value).__name__}: {value}")
    return event


def _dumps(value: Any, **_: Any) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
