"""Column types that mean the same on PostgreSQL and SQLite."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer, String
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator, TypeEngine


class UtcDateTime(TypeDecorator[datetime]):
    """A moment. ``timestamptz`` on PostgreSQL; on SQLite ISO text in UTC, which sorts as time does."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Aware in; SQLite gets naive UTC. Raises ValueError for a naive moment."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"found the naive moment {value.isoformat()}, expected one with a time zone")
        return value.astimezone(UTC).replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Aware out, in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


Moment = UtcDateTime
Hex64Column = String(16)
"""A 64-bit value as 16 hexadecimal digits: SQL integers are signed and JSON numbers lose bits."""

Json: TypeEngine[Any] = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
Count = Integer
Big = BigInteger
