"""Projections: state built by reading all partitions of a topic, in order, without a group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum

from services.runtime.bus import Record
from services.runtime.topics import Topic


class Start(Enum):
    """Where a projection begins."""

    BEGINNING = "beginning"
    END = "end"
    SINCE = "since"


AT_END = -1
AT_BEGINNING = -2


class Projection:
    """Applies records in order and knows how far it got.

    ``apply`` is synchronous and quick. What it raises is counted and logged by the reader, and the record skipped.
    """

    def __init__(
        self,
        topic: Topic,
        apply: Callable[[Record], None],
        *,
        start: Start = Start.BEGINNING,
        since_ms: int | None = None,
        offsets: Callable[[], dict[int, int]] | None = None,
        stage: str = "",
    ) -> None:
        if start is Start.SINCE and since_ms is None:
            raise ValueError(f"projection of {topic.name} starts SINCE: give since_ms")
        self.topic = topic
        self.apply = apply
        self.start = start
        self.since_ms = since_ms
        self.offsets = offsets
        self.stage = stage
        self.positions: dict[int, int] = {}
        """Next offset to apply, by partition."""
        self.targets: dict[int, int | None] = {}
        """Highwater noted at the start, by partition; None until it is known."""
        self.highwaters: dict[int, int] = {}
        """Latest highwater seen, by partition."""
        self.fed = False
        """Whether a reader feeds it."""
        self._caught_up = asyncio.Event()
        self._waiting: list[tuple[dict[int, int], asyncio.Future[None]]] = []

    @property
    def caught_up(self) -> bool:
        """Whether everything that was there at the start has been applied. Stays true."""
        return self._caught_up.is_set()

    async def wait_caught_up(self) -> None:
        """Return when caught up."""
        await self._caught_up.wait()

    async def wait_past(self, offsets: Mapping[int, int]) -> None:
        """Return when the next offset of each given partition has reached the given one."""
        wanted = dict(offsets)
        if self._past(wanted):
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, future))
        try:
            await future
        finally:
            self._waiting = [(want, waiter) for want, waiter in self._waiting if waiter is not future]

    # For the reader

    def begin(self, positions: Mapping[int, int]) -> None:
        """Set where reading begins, for all partitions of the topic."""
        self.positions = dict(positions)
        self.targets = dict.fromkeys(positions)

    def note_highwater(self, partition: int, highwater: int) -> None:
        """Note a partition's highwater; the first one is what catching up means."""
        self.highwaters[partition] = highwater
        if partition in self.targets and self.targets[partition] is None:
            self.targets[partition] = highwater

    def take(self, record: Record) -> None:
        """Apply the record unless it was applied before. Raises what ``apply`` raises, after moving on."""
        if record.offset < self.positions.get(record.partition, 0):
            return
        self.positions[record.partition] = record.offset + 1
        self.apply(record)

    def advance(self, partition: int, position: int) -> None:
        """Move on over offsets that hold no record (compacted, control batches)."""
        if position > self.positions.get(partition, 0):
            self.positions[partition] = position

    def settle(self) -> None:
        """Wake who waits for what has been reached by now."""
        if not self._caught_up.is_set() and self.targets and self._reached_targets():
            self._caught_up.set()
        for wanted, future in self._waiting:
            if not future.done() and self._past(wanted):
                future.set_result(None)

    def _reached_targets(self) -> bool:
        return all(
            target is not None and self.positions[partition] >= target for partition, target in self.targets.items()
        )

    def _past(self, wanted: Mapping[int, int]) -> bool:
        return all(self.positions.get(partition, 0) >= offset for partition, offset in wanted.items())
