"""Dead letters: the original value raw, everything else in headers, nothing secret in them."""

from __future__ import annotations

from services.runtime.bus import Record, Sender
from services.runtime.errors import BadRecord
from services.runtime.logs import get_logger, redact
from services.runtime.topics import DEAD_LETTERS

PREFIX = "dlq-"
REDRIVEN = "dlq-redriven"
"""How often the record was sent again by then: the one header of ours that a record carries back in."""
LONGEST_MESSAGE = 1000
_log = get_logger("runtime.dead_letters")


def headers_of(record: Record, stage: str, code: str, message: str) -> dict[str, bytes]:
    """Headers of a record's dead letter: its own, then where it stood, who gave up and why."""
    own = {name: value or b"" for name, value in record.headers if name == REDRIVEN or not name.startswith(PREFIX)}
    return own | {
        "dlq-topic": record.topic.encode(),
        "dlq-partition": str(record.partition).encode(),
        "dlq-offset": str(record.offset).encode(),
        "dlq-timestamp-ms": str(record.timestamp_ms).encode(),
        "dlq-stage": stage.encode(),
        "dlq-code": code.encode(),
        "dlq-message": redact(message)[:LONGEST_MESSAGE].encode("utf-8", "replace"),
    }


class DeadLetters:
    """Puts records of a stage into the dead letters."""

    def __init__(self, sender: Sender, stage: str) -> None:
        self._sender = sender
        self._stage = stage

    async def bury(self, record: Record, code: str, message: str) -> None:
        """Store a dead letter and return when the broker has it. Raises Transient when it can't be reached."""
        headers = headers_of(record, self._stage, code, message)
        try:
            await self._sender.send_raw(DEAD_LETTERS.name, record.value, key=record.key, headers=headers)
        except BadRecord as error:
            # Its headers or value are above what the broker takes. The record still stands where it stood.
            _log.error("dead letter without its value", topic=record.topic, offset=record.offset, error=str(error))
            short = {name: value for name, value in headers.items() if name.startswith(PREFIX)}
            short["dlq-truncated"] = b"1"
            await self._sender.send_raw(DEAD_LETTERS.name, b"", key=(record.key or b"")[:1024], headers=short)
