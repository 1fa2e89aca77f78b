"""A dead letter as people handle it. Pure: records in, letters, redacted views and records to send again out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from services.audit.moments import moment
from services.runtime.bus import Record
from services.runtime.dead_letters import PREFIX, REDRIVEN
from services.runtime.errors import KvrouteError
from services.runtime.logs import redact
from services.runtime.topics import DEAD_LETTERS, PATTERNS, TOPICS

REDRIVES = 3
"""Times a record is sent again before it takes --force: one that always fails must not go round for ever."""

_SECRET_NAMES = re.compile(r"api[-_]?key|authorization|password|secret|token$|cookie|credential", re.IGNORECASE)
_ID = re.compile(r"^(\d{1,6}):(\d{1,18})$")


class BadLetter(KvrouteError):
    """A dead letter can't be found, read or sent again. The message says why and what can be done."""


@dataclass(frozen=True, slots=True)
class LetterId:
    """Where a dead letter stands in the dead-letters topic, written ``partition:offset``."""

    partition: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> LetterId:
        """Read ``partition:offset``. Raises BadLetter."""
        found = _ID.match(text)
        if found is None:
            raise BadLetter(f"found {text!r}, expected PARTITION:OFFSET as `kvroute dlq list` prints it, such as 1:42")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


@dataclass(frozen=True, slots=True)
class Letter:
    """What a dead letter says about its original record."""

    id: str
    dead_at: datetime
    topic: str
    partition: str
    offset: str
    stage: str
    code: str
    message: str
    key: str
    size: int
    redriven: int

    @classmethod
    def of(cls, record: Record) -> Letter:
        """Read a record of the dead-letters topic. Headers that are missing are empty."""
        headers = {name: value.decode("utf-8", "replace") for name, value in record.headers}
        count = headers.get(REDRIVEN, "")
        return cls(
            id=str(LetterId(record.partition, record.offset)),
            dead_at=moment(max(record.timestamp_ms, 0)),
            topic=headers.get("dlq-topic", ""),
            partition=headers.get("dlq-partition", ""),
            offset=headers.get("dlq-offset", ""),
            stage=headers.get("dlq-stage", ""),
            code=headers.get("dlq-code", ""),
            message=redact(headers.get("dlq-message", "")),
            key=(record.key or b"").decode("utf-8", "replace"),
            size=len(record.value or b""),
            redriven=int(count) if count.isascii() and count.isdigit() else 0,
        )


@dataclass(frozen=True, slots=True)
class Redrive:
    """A record to send again: its original bytes, key and headers, and where to."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]


def redrive_of(record: Record, *, force: bool = False) -> Redrive:
    """The original record of a dead letter, with the count of its returns.

    Raises:
        BadLetter: it names no topic of kvroute, its value did not fit into the dead letter, or it has come back
            ``REDRIVES`` times already (unless ``force``).
    """
    letter = Letter.of(record)
    if not _takes_redrives(letter.topic):
        raise BadLetter(f"dead letter {letter.id} names the topic {letter.topic!r}: expected a topic of kvroute")
    headers = dict(record.headers)
    if "dlq-truncated" in headers:
        raise BadLetter(
            f"dead letter {letter.id} holds no value, the record was too large: it stands at {letter.topic} "
            f"{letter.partition}:{letter.offset} as long as that topic keeps it"
        )
    if letter.redriven >= REDRIVES and not force:
        raise BadLetter(
            f"dead letter {letter.id} was sent again {letter.redriven} times and failed each time ({letter.code}): "
            "mend the cause first, then use --force"
        )
    own = {name: value for name, value in headers.items() if not name.startswith(PREFIX)}
    return Redrive(letter.topic, record.key, record.value, own | {REDRIVEN: str(letter.redriven + 1).encode()})


def _takes_redrives(topic: str) -> bool:
    if any(topic == entry.name for entry in TOPICS if entry is not DEAD_LETTERS):
        return True
    return any(topic.startswith(pattern.name.partition("{}")[0]) for pattern in PATTERNS)


def shown_headers(record: Record) -> dict[str, str]:
    """The headers with secrets taken out."""
    return {
        name: "(hidden)" if _SECRET_NAMES.search(name) else redact(value.decode("utf-8", "replace"))
        for name, value in record.headers
    }


def shown_value(value: bytes | None, most: int) -> Any:
    """The value with secrets, URL queries and inline data taken out: JSON if it is, else text cut to ``most`` bytes."""
    if value is None:
        return None
    try:
        return _redacted(orjson.loads(value))
    except ValueError:
        text = redact(value[:most].decode("utf-8", "backslashreplace"))
        return text if len(value) <= most else f"{text}… ({len(value)} bytes)"


def _redacted(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _redacted(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_redacted(item) for item in value]
    if name and _SECRET_NAMES.search(name) and isinstance(value, str):
        return "(hidden)"
    if isinstance(value, str):
        # Bodies travel as JSON text in JSON: look inside, or a query would hide behind escapes.
        if value[:1] in "{[" and name == "body":
            try:
                return _redacted(orjson.loads(value))
            except ValueError:
                return redact(value)
        return redact(value)
    return value
