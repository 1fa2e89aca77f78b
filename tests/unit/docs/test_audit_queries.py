"""Every query in docs/audit.md, and every example of a view, runs on a migrated store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from services.audit.database import open_engine
from services.audit.migrate import upgrade_engine
from services.audit.views import VIEWS
from services.runtime.settings import Settings

PAGE = (Path(__file__).parents[3] / "docs" / "audit.md").read_text("utf-8")
QUERIES = re.findall(r"^```sql\n(.+?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("query", [*QUERIES, *(view.example for view in VIEWS)])
async def test_query_runs(query: str, tmp_path: Path) -> None:
    engine = open_engine(Settings(database_url=SecretStr(f"sqlite+aiosqlite:///{tmp_path}/audit.sqlite3")))
    try:
        await upgrade_engine(engine)
        async with engine.connect() as connection:
            result = await connection.execute(text(query))
            assert result.keys()
            assert result.all() == []
    finally:
        await engine.dispose()


def test_every_view_is_shown() -> None:
    assert len(QUERIES) >= 7
    for view in VIEWS:
        assert view.name in PAGE
