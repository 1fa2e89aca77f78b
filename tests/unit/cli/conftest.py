"""A command line with fakes, and an audit store on SQLite with a few requests in it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from schemas.decision import Mode, Outcome
from schemas.lifecycle import LifecycleEvent, Usage
from schemas.types import Message
from services.audit import migrate
from services.audit.database import open_engine
from services.audit.moments import moment
from services.audit.rows import Rows, decision_rows, lifecycle_rows
from services.audit.writer import Writer
from services.kv.reason import Reason
from services.router.situation import Parameters
from services.runtime.settings import Settings
from tests.fakes.audit_records import NOON_MS, decision, fact, finished, image, record_of
from tests.fakes.cli import CommandLine


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting from outside; work in an empty folder."""
    import os

    for name in [name for name in os.environ if name.startswith("KVROUTE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def kvroute() -> CommandLine:
    return CommandLine()


def rows_of(message: Message) -> Rows:
    return decision_rows(message, record_of(message)) if hasattr(message, "outcome") else lifecycle_rows(message)


REQUESTS = [
    fact(LifecycleEvent.ACCEPTED, "hit", attempt=0, after_ms=1, model="qwen3-vl", stream=True),
    decision("hit", media=[image()], parameters=Parameters(request_weight=2.0, turn=7.0).as_dict()),
    fact(LifecycleEvent.FIRST_TOKEN, "hit", after_ms=80),
    finished("hit", cached=48),
    decision("short", mode=Mode.TEXT_PREFIX, reason=Reason.FETCH_FAILED, detail="HTTP 404", exact_tokens=40),
    fact(LifecycleEvent.FIRST_TOKEN, "short", after_ms=899),
    finished("short", usage=Usage(prompt_tokens=352, completion_tokens=20, cached_tokens=32)),
    decision("busy", outcome=Outcome.ALL_BUSY, worker_id=None, epoch=None, candidates=[], excluded=["w1/0", "w2/0"]),
    decision("asked", route_only=True),
    decision("moved", media=[image(offset=60)], created_at_ms=NOON_MS + 1000),
    fact(LifecycleEvent.REFUSED, "refused", attempt=0, status=400, code="bad_image", detail="a truncated JPEG"),
]


async def _fill(path: Path) -> None:
    settings = Settings(database_url=f"sqlite:///{path}")
    await migrate.upgrade(settings)
    engine = open_engine(settings)
    await Writer(engine, lambda: moment(NOON_MS), 30).write([rows_of(message) for message in REQUESTS])
    await engine.dispose()


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "audit.sqlite3"
    asyncio.run(_fill(path))
    return path


@pytest.fixture
def store(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of this test's own, named by the environment."""
    path = tmp_path / "audit.sqlite3"
    shutil.copy(filled, path)
    monkeypatch.setenv("KVROUTE_DATABASE_URL", f"sqlite:///{path}")
    return path
