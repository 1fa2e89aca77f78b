"""Milliseconds of the messages and moments of the tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from services.runtime.errors import BadRecord

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def moment(ms: int) -> datetime:
    """Wall milliseconds since the epoch as a moment.

    Raises:
        BadRecord: the number is outside the years 1 to 9999.
    """
    try:
        return EPOCH + ms * MILLISECOND
    except OverflowError:
        raise BadRecord("bad_time", f"found the time {ms} ms, expected milliseconds since 1970") from None


def milliseconds(at: datetime) -> int:
    """The inverse of ``moment``."""
    return (at - EPOCH) // MILLISECOND
