"""An engine's KV events that have to be asked for: polled, and gone from the engine once they were given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import orjson

from services.runtime.logs import get_logger
from services.worker.engine import EngineError
from services.worker.event_stream import RawBatch

POLL_SECONDS = 0.05
AWAY_SECONDS = 1.0
"""Pause while the engine does not answer."""

Drain = Callable[[], Awaitable[list[Any]]]
_log = get_logger("worker.polling")


class PollingStream:
    """One rank's events by polling. Every event is a batch of its own, numbered by its ``event_id``."""

    remembers = False
    """What was given once is not given again: a hole can't be filled."""

    def __init__(self, drain: Drain, *, now: Callable[[], float] = time.time) -> None:
        self._drain = drain
        self._now = now

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close."""

    async def receive(self) -> list[RawBatch]:
        """The next events: what is there already, or the first that come."""
        while True:
            try:
                if batches := await self._poll():
                    return batches
                await asyncio.sleep(POLL_SECONDS)
            except EngineError as error:
                _log.info("no KV events", error=str(error)[:200])
                await asyncio.sleep(AWAY_SECONDS)

    async def replay(self, start: int) -> AsyncGenerator[RawBatch, None]:
        """What nobody has asked for yet, from a number on."""
        try:
            batches = await self._poll()
        except EngineError:
            return
        for batch in batches:
            if batch.seq >= start:
                yield batch

    async def _poll(self) -> list[RawBatch]:
        events = await self._drain()
        at = self._now()
        return [
            RawBatch(event["event_id"], orjson.dumps({"at": at, "event": event}))
            for event in events
            if isinstance(event, dict) and isinstance(event.get("event_id"), int)
        ]
