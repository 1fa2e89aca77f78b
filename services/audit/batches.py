"""Many records, one transaction: handlers hand in rows and wait until the batch that holds them is committed.

The first rows wait ``linger`` seconds for company, and what comes while a write runs makes the next batch: nobody waits
for the audit, and a transaction costs about the same for one record as for fifty. While the database is away nothing
fails and nothing is dropped: the same batch is tried again, the handlers wait, their offsets stay uncommitted and the
stage stops reading at its bound.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from services.audit.faults import is_databases_fault, is_rows_fault
from services.audit.rows import Rows
from services.runtime.errors import BadRecord

Write = Callable[[Sequence[Rows]], Awaitable[None]]
Spawn = Callable[[Coroutine[Any, Any, None]], object]

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


class Batches:
    """Collects rows into batches of at most ``limit`` records and writes one batch at a time.

    ``spawn`` starts the task that writes; ``away`` is told of every try the database refuses and of the return
    (with None); ``pause`` waits between tries.
    """

    def __init__(
        self,
        write: Write,
        limit: int,
        *,
        spawn: Spawn,
        linger: float = 0.0,
        away: Callable[[BaseException | None], None] = lambda _error: None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._write = write
        self._limit = limit
        self._spawn = spawn
        self._linger = linger
        self._away = away
        self._pause = pause
        self._waiting: deque[tuple[Rows, asyncio.Future[None]]] = deque()
        self._writing = False

    async def add(self, rows: Rows) -> None:
        """Returns when the rows are committed.

        Raises:
            BadRecord: the database rejects these rows, whatever else is in the batch.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((rows, done))
        if not self._writing:
            self._writing = True
            self._spawn(self._write_all())
        await done

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                if self._linger and len(self._waiting) < self._limit:
                    await asyncio.sleep(self._linger)
                batch = [self._waiting.popleft() for _ in range(min(self._limit, len(self._waiting)))]
                await self._settle([(rows, done) for rows, done in batch if not done.done()])
        finally:
            self._writing = False

    async def _settle(self, batch: list[tuple[Rows, asyncio.Future[None]]]) -> None:
        """Write a batch; where the database rejects a row, halve until the guilty one stands alone."""
        if not batch:
            return
        try:
            await self._write_patiently([rows for rows, _ in batch])
        except Exception as error:
            if len(batch) > 1 and is_rows_fault(error):
                middle = len(batch) // 2
                await self._settle(batch[:middle])
                await self._settle(batch[middle:])
                return
            _fail(batch, _rejected(error) if is_rows_fault(error) else error)
        except BaseException:
            for _, done in batch:
                done.cancel()
            raise
        else:
            for _, done in batch:
                if not done.done():
                    done.set_result(None)

    async def _write_patiently(self, rows: list[Rows]) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._write(rows)
            except Exception as error:
                if not is_databases_fault(error):
                    raise
                self._away(error)
                await self._pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self._away(None)
                return


def _fail(batch: list[tuple[Rows, asyncio.Future[None]]], error: Exception) -> None:
    for _, done in batch:
        if not done.done():
            done.set_exception(error)


def _rejected(error: Exception) -> BadRecord:
    origin = getattr(error, "orig", None) or error
    return BadRecord("audit_rejected", f"the audit store rejects the row: {str(origin)[:300]}")
