"""One connection pool to the audit store, from the settings: PostgreSQL (asyncpg) or SQLite (aiosqlite)."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from services.audit.place import default_file
from services.runtime.errors import ConfigError
from services.runtime.settings import Settings

DRIVERS = {"postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg", "sqlite": "sqlite+aiosqlite"}
BUSY_TIMEOUT_MS = 10_000


def database_url(settings: Settings) -> URL:
    """The store's URL with an asynchronous driver; by default the SQLite file ``audit.sqlite3`` under data_dir.

    Raises:
        ConfigError: no SQLAlchemy URL, or of a database kvroute does not know.
    """
    if settings.database_url is None:
        return URL.create(DRIVERS["sqlite"], database=str(default_file(settings)))
    try:
        url = make_url(settings.database_url.get_secret_value())
    except ArgumentError:
        raise ConfigError(
            "KVROUTE_DATABASE_URL is no database URL: expected sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME"
        ) from None
    dialect = url.drivername.partition("+")[0]
    if dialect not in DRIVERS:
        raise ConfigError(f"KVROUTE_DATABASE_URL names {dialect!r}: expected postgresql or sqlite")
    return url.set(drivername=DRIVERS[dialect])


def missing_file(settings: Settings) -> Path | None:
    """The SQLite file that does not exist yet; None when it does or the store is PostgreSQL.

    Connecting would make an empty one: who only reads asks first.
    """
    url = database_url(settings)
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    path = Path(url.database)
    return None if path.exists() else path


def describe(url: URL) -> str:
    """The URL without its password, for people and logs."""
    return url.set(query={}).render_as_string(hide_password=True)


def open_engine(settings: Settings) -> AsyncEngine:
    """A pool that connects when first used. The caller disposes of it.

    Raises:
        ConfigError: the URL or the TLS settings are wrong, or the driver is not installed.
    """
    url = database_url(settings)
    options: dict[str, Any] = {
        "json_serializer": lambda value: orjson.dumps(value).decode(),
        "json_deserializer": orjson.loads,
    }
    if url.get_backend_name() == "sqlite":
        if url.database and url.database != ":memory:":
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_async_engine(url, **options)
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        return engine
    try:
        return create_async_engine(
            url,
            pool_size=4,
            max_overflow=4,
            pool_pre_ping=True,
            connect_args={"ssl": _tls(settings), "timeout": 5, "command_timeout": 30},
            **options,
        )
    except ModuleNotFoundError as error:
        raise ConfigError(f"the PostgreSQL driver is missing ({error.name}): install kvroute[postgres]") from None


def _tls(settings: Settings) -> str | ssl.SSLContext:
    """What asyncpg is told about TLS: a libpq mode, or a context that knows the certificate authority."""
    mode = settings.database_ssl
    if mode in ("disable", "prefer"):
        return mode
    if mode == "verify-full" or settings.database_ssl_ca is not None:
        if settings.database_ssl_ca is not None and not settings.database_ssl_ca.is_file():
            raise ConfigError(
                f"KVROUTE_DATABASE_SSL_CA names {settings.database_ssl_ca}, which is no file: expected PEM"
            )
        context = ssl.create_default_context(cafile=settings.database_ssl_ca)
        context.check_hostname = mode == "verify-full"
        return context
    return mode


def _prepare_sqlite(connection: Any, _record: object) -> None:
    """Readers beside the writer (WAL), and waiting for a lock instead of failing at once."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.close()
