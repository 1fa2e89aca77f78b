"""Where the store is without a database URL. Apart, so that asking costs no SQLAlchemy."""

from __future__ import annotations

from pathlib import Path

from services.runtime.settings import Settings


def default_file(settings: Settings) -> Path:
    """The SQLite file under data_dir."""
    return settings.data_dir / "audit.sqlite3"


def surely_missing(settings: Settings) -> bool:
    """Whether there is no store to ask: none was named, and the default one was never made."""
    return settings.database_url is None and not default_file(settings).is_file()
