"""When a stage gives up: after so many failures of its own in a row. Input errors never count.

An outage (database away) fails every record, a poisoned record fails alone. So a record that used up its tries for a
cause that may heal is not called dead at once: ``outage`` waits until another record succeeds (the stage works: it was
the record), the rule trips (the outage is real: the record stays uncommitted and is read again) or patience ends.
"""

from __future__ import annotations

import asyncio


class StopRule:
    """Counts own failures since the last success. One per stage, shared by its consumers."""

    def __init__(self, limit: int, patience: float = 10.0) -> None:
        self.limit = limit
        self.patience = patience
        self.in_a_row = 0
        self.tripped = asyncio.Event()
        self.cause = ""
        self._success = asyncio.Event()

    def succeeded(self) -> None:
        """A record was handled by our own means: the row ends."""
        if self.in_a_row:
            self.in_a_row = 0
            self._success.set()
            self._success = asyncio.Event()

    def failed(self, cause: str) -> None:
        """A failure of ours: broker, database, bug."""
        self.in_a_row += 1
        if self.in_a_row >= self.limit and not self.tripped.is_set():
            self.cause = cause
            self.tripped.set()

    async def outage(self, cause: str) -> bool:
        """Count a record that used up its tries. True: everything fails, leave the record for the next start."""
        self.failed(cause)
        success = asyncio.create_task(self._success.wait())
        tripped = asyncio.create_task(self.tripped.wait())
        try:
            await asyncio.wait({success, tripped}, timeout=self.patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            success.cancel()
            tripped.cancel()
        return self.tripped.is_set()
