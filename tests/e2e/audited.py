"""The audit store as the end-to-end tests read it: plain SQL, as a user would."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass
from pathlib import Path

PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Audited:
    """One attempt: decision and outcome side by side."""

    request_id: str
    attempt: int
    outcome: str
    worker: str | None
    mode: str
    reason: str | None
    overlap: int
    total_blocks: int
    predicted_tokens: int
    cached_tokens: int | None
    status: str | None


SQL = """
SELECT d.request_id, d.attempt, d.outcome, d.worker_id, d.mode, d.reason, d.overlap_confirmed, d.total_blocks,
       d.predicted_tokens, o.cached_tokens, o.status
  FROM decisions d
  LEFT JOIN outcomes o
    ON o.created_at = d.created_at AND o.tenant = d.tenant AND o.request_id = d.request_id AND o.attempt = d.attempt
"""


def attempts(database: Path) -> list[Audited]:
    """All attempts in the store."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        return [Audited(*row) for row in connection.execute(SQL)]


async def settled(database: Path, requests: int) -> list[Audited]:
    """All attempts, once so many requests have one that ended; what there is after a while otherwise."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_SECONDS
    while True:
        rows = attempts(database)
        if len({row.request_id for row in rows if row.status == "finished"}) >= requests or loop.time() > deadline:
            return rows
        await asyncio.sleep(0.2)
