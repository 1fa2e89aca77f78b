"""Fleets of processes on each broker, with an audit store of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from services.audit.migrate import upgrade
from services.runtime.admin import create_topics
from tests.conftest import RunningBroker
from tests.e2e.fleet import Fleet


@pytest.fixture
async def fleet(broker: RunningBroker, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Topics and audit store are made; no process runs yet."""
    settings = broker.settings(tmp_path, database_url=SecretStr(f"sqlite+aiosqlite:///{tmp_path}/audit.sqlite3"))
    await create_topics(settings)
    await upgrade(settings)
    running = Fleet(settings, tmp_path)
    try:
        yield running
    finally:
        await running.stop()
