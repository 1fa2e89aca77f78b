"""Spans and moments as people write them: ``90s``, ``15m``, ``6h``, ``7d``, or an ISO date."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import click

_SPAN = re.compile(r"^(\d{1,6})\s*([smhd])$")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def since(text: str, now: datetime) -> datetime:
    """The moment a span ago, or the moment itself. Raises click.BadParameter."""
    if found := _SPAN.match(text.strip()):
        return now - timedelta(**{_UNITS[found[2]]: int(found[1])})
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise click.BadParameter(
            f"found {text!r}, expected a span such as 90s, 15m, 6h, 7d or a moment such as 2026-01-31T12:00"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
