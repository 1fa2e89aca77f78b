"""Records and treatments for the tests of the runtime."""

from __future__ import annotations

import asyncio

from services.runtime.bus import Record
from services.runtime.logs import get_logger
from services.runtime.retry import Backoff
from services.runtime.stop_rule import StopRule
from services.runtime.treatment import Handler, Treatment

TOPIC = "kvroute.requests.v1"


def record(offset: int, *, key: str | None = None, partition: int = 0, value: bytes = b"{}") -> Record:
    """A record; without a key it is its own."""
    raw_key = f"k{partition}-{offset}" if key is None else key
    return Record(TOPIC, partition, offset, 1_000_000 + offset, raw_key.encode(), value)


class Graveyard:
    """Keeps dead letters; ``away`` lets the broker be away."""

    def __init__(self) -> None:
        self.buried: list[tuple[Record, str, str]] = []
        self.away: Exception | None = None

    async def bury(self, record: Record, code: str, message: str) -> None:
        """Keep one."""
        if self.away is not None:
            raise self.away
        self.buried.append((record, code, message))

    @property
    def codes(self) -> list[str]:
        """Their codes."""
        return [code for _, code, _ in self.buried]


class Seen:
    """What a treatment reported."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, str]] = []

    def handled(self, record: Record, seconds: float) -> None:
        """Keep it."""
        self.events.append(("handled", record.offset, ""))

    def retried(self, record: Record, code: str) -> None:
        """Keep it."""
        self.events.append(("retried", record.offset, code))

    def buried(self, record: Record, code: str) -> None:
        """Keep it."""
        self.events.append(("buried", record.offset, code))


async def no_sleep(seconds: float) -> None:
    """Let others run instead of sleeping."""
    await asyncio.sleep(0)


def treatment(
    handler: Handler,
    graveyard: Graveyard | None = None,
    *,
    rule: StopRule | None = None,
    tries: int = 3,
    seen: Seen | None = None,
) -> Treatment:
    """A treatment that does not sleep."""
    return Treatment(
        handler,
        (graveyard or Graveyard()).bury,
        backoff=Backoff(tries=tries),
        stop_rule=rule or StopRule(20, patience=0.0),
        witness=seen or Seen(),
        log=get_logger("test"),
        sleep=no_sleep,
    )
