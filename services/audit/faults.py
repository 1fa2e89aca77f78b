"""Whose fault a failed write is: the row's, which no waiting mends, or the database's, which may be back soon."""

from __future__ import annotations

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError

from services.runtime.errors import KvrouteError

_ROW_ORIGINS = (ValueError, OverflowError, TypeError)
_ROW_STATES = ("22", "23", "54")
"""SQLSTATE classes: data exception, integrity constraint violation, program limit exceeded."""


class NotMigrated(KvrouteError):
    """The database answers but its schema is not the one this build writes."""

    def __init__(self, found: str | None, expected: str) -> None:
        super().__init__(
            f"the audit store has schema {found or 'none'}, this build needs {expected}: run `kvroute db upgrade`"
        )


def is_rows_fault(error: BaseException) -> bool:
    """Whether the database (or its driver) rejects a value: out of range, not encodable, against a constraint."""
    if isinstance(error, DataError | IntegrityError):
        return True
    if isinstance(error, DBAPIError):
        cause = error.orig.__cause__ if error.orig is not None else None
        return str(getattr(cause, "sqlstate", "")).startswith(_ROW_STATES) or isinstance(cause, _ROW_ORIGINS)
    if isinstance(error, StatementError):
        return isinstance(error.orig, _ROW_ORIGINS)
    return isinstance(error, OverflowError | UnicodeError)


def is_databases_fault(error: BaseException) -> bool:
    """Whether the database is away, locked, restarting, or has not been migrated: trying again may help."""
    if is_rows_fault(error):
        return False
    # A connection that is refused while it is made raises the driver's own error, which SQLAlchemy does not wrap.
    from_driver = type(error).__module__.partition(".")[0] == "asyncpg"
    return from_driver or isinstance(error, DBAPIError | OSError | TimeoutError | NotMigrated)
