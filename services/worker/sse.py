"""Server-sent events: cutting a byte stream into whole events. Pure."""

from __future__ import annotations

_DONE = b"[DONE]"
EVENT_LIMIT = 16 << 20


class SseError(ValueError):
    """A stream that is no stream of events."""


class EventSplitter:
    """Collects bytes and gives back whole events, each without the blank line that ends it."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events completed by these bytes. Raises SseError when one grows beyond 16 MiB."""
        # A carriage return may be the first half of a line end that is not here yet.
        data = self._rest + data
        keep = b"\r" if data.endswith(b"\r") else b""
        *events, rest = data[: len(data) - len(keep)].replace(b"\r\n", b"\n").split(b"\n\n")
        self._rest = rest + keep
        if len(self._rest) > EVENT_LIMIT:
            raise SseError(f"an event of more than {EVENT_LIMIT} bytes")
        return [event for event in events if event.strip()]


def data_of(event: bytes) -> bytes | None:
    """The payload of an event; None for comments and pings."""
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def is_done(data: bytes) -> bool:
    """Whether this payload ends an OpenAI stream."""
    return data.strip() == _DONE
