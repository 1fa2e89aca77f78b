"""What is done with one record until it is finished: tries, waits, dead letters."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from services.runtime import trace
from services.runtime.bus import Record
from services.runtime.errors import BadRecord, Refused, Transient
from services.runtime.retry import Backoff
from services.runtime.stop_rule import StopRule

Handler = Callable[[Record], Awaitable[None]]
Sleep = Callable[[float], Awaitable[None]]


class Burial(Protocol):
    """Puts a record into the dead letters."""

    async def __call__(self, record: Record, code: str, message: str) -> None:
        """Return when the dead letter is stored. Raises Transient when the broker can't be reached."""
        ...


class Witness(Protocol):
    """Is told what happened, for metrics."""

    def handled(self, record: Record, seconds: float) -> None:
        """A handler returned."""
        ...

    def retried(self, record: Record, code: str) -> None:
        """A try failed and there will be another."""
        ...

    def buried(self, record: Record, code: str) -> None:
        """A dead letter was stored."""
        ...


class Treatment:
    """Runs a handler over a record until the record is finished or the stage stops.

    BadRecord and Refused are the input's fault: dead letter at once, never counted. Transient may heal: tried again,
    then held until it is known whether everything fails (services/runtime/stop_rule.py). Anything else is a bug of
    ours: tried again, dead letter, counted.
    """

    def __init__(
        self,
        handler: Handler,
        bury: Burial,
        *,
        backoff: Backoff,
        stop_rule: StopRule,
        witness: Witness,
        log: structlog.stdlib.BoundLogger,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._handler = handler
        self._bury = bury
        self._backoff = backoff
        self._rule = stop_rule
        self._witness = witness
        self._log = log
        self._sleep = sleep

    async def treat(self, record: Record) -> bool:
        """Handle a record. True: finished, never needed again. False: the stage is stopping, read it again."""
        trace.current.set(trace.of_headers(record.headers))
        loop = asyncio.get_running_loop()
        started = loop.time()
        failed = 0
        while not self._rule.tripped.is_set():
            try:
                await self._handler(record)
            except (BadRecord, Refused) as error:
                code = error.code if isinstance(error, BadRecord) else "refused"
                return await self._dead(record, code, str(error))
            except Transient as error:
                code, message = "transient", str(error)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Something the handler waited for was cancelled, not this record.
                code, message = "internal_error", "the handler was cancelled from within"
            except Exception as error:
                code, message = "internal_error", f"{type(error).__name__}: {error}"
                self._log.exception("handler failed", **_where(record), failed=failed + 1)
            else:
                self._rule.succeeded()
                self._witness.handled(record, loop.time() - started)
                return True
            failed += 1
            wait = self._backoff.wait(failed, random.random())
            if wait is None:
                return await self._give_up(record, code, message)
            self._witness.retried(record, code)
            if failed == 1:
                self._log.warning("record is tried again", **_where(record), code=code, error=message)
            await self._sleep(wait)
        return False

    async def until_it_works(self, job: Callable[[], Awaitable[None]], name: str) -> bool:
        """Run a job again and again until it works (True) or the stage stops. Every failure is ours and counts."""
        failed = 0
        while not self._rule.tripped.is_set():
            try:
                await job()
            except Exception as error:
                failed += 1
                self._rule.failed(f"{name}: {error}")
                self._log.warning(f"{name} failed", error=str(error), failed=failed)
            else:
                return True
            await self._sleep(self._backoff.wait(min(failed, self._backoff.tries)) or self._backoff.longest)
        return False

    def broke(self, record: Record, error: BaseException) -> None:
        """The treatment itself failed: the record stays unfinished, the failure counts."""
        self._log.error("record was not treated", **_where(record), error=repr(error))
        self._rule.failed(repr(error))

    async def _give_up(self, record: Record, code: str, message: str) -> bool:
        if code == "transient":
            if await self._rule.outage(message):
                return False
        else:
            # First the dead letter, then the count: were it the other way round, the same twenty records that hit
            # a bug would stop the stage again after every start.
            finished = await self._dead(record, code, message)
            self._rule.failed(message)
            return finished
        return await self._dead(record, code, message)

    async def _dead(self, record: Record, code: str, message: str) -> bool:
        async def bury() -> None:
            await self._bury(record, code, message)

        if not await self.until_it_works(bury, "dead letter"):
            return False
        self._witness.buried(record, code)
        self._log.warning("dead letter", **_where(record), code=code, error=message)
        return True


def _where(record: Record) -> dict[str, object]:
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}
