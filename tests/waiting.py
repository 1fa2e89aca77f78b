"""Waiting in tests: for something to become true, never for time to pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.runtime.bus import Record

PATIENCE_SECONDS = 40.0


async def eventually(true: Callable[[], object], what: str = "", seconds: float = PATIENCE_SECONDS) -> None:
    """Return when ``true()`` is; fail after a time no healthy run needs."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not true():
        if loop.time() > deadline:
            raise AssertionError(f"did not happen within {seconds:.0f} s: {what or true}")
        await asyncio.sleep(0.01)


class Collected:
    """Records a consumer was given."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def add(self, record: Record) -> None:
        """Keep one."""
        self.records.append(record)

    @property
    def values(self) -> list[bytes]:
        """Their values, in order of arrival."""
        return [record.value or b"" for record in self.records]

    async def count(self, number: int) -> None:
        """Return when there are so many."""
        await eventually(lambda: len(self.records) >= number, f"{number} records, there are {len(self.records)}")
