"""A service in memory: what a stage registers on it is driven by the test, what it sends is there to look at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.decision import Position
from schemas.types import Message
from services.runtime.bus import Record
from services.runtime.errors import BadRecord
from services.runtime.projection import Projection, Start
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import CONTROL, Topic
from tests.fakes.bus import FakeSender
from tests.fakes.clock import FakeClock

Handler = Callable[[Record], Awaitable[None]]
OnPartitions = Callable[[frozenset[int]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record a handler or a projection called bad."""

    record: Record
    code: str
    message: str


@dataclass
class Registered:
    """A consumer as it was registered; ``group`` None: an assigned reader."""

    topic: str
    handler: Handler
    group: str | None
    on_assigned: OnPartitions | None = None
    on_revoked: OnPartitions | None = None


class Harness(Service):
    """A ``Service`` that connects to nothing.

    Tests push records, tick jobs, and read ``sender.sent`` and ``dead_letters``.
    What a stage sends to a topic it projects itself comes back to its projections at once
    (``loopback=False``: when ``deliver`` is called).
    """

    sender: FakeSender
    clock: FakeClock

    def __init__(
        self,
        name: str = "test",
        settings: Settings | None = None,
        *,
        clock: FakeClock | None = None,
        partitions: Mapping[str, int] | None = None,
        loopback: bool = True,
    ) -> None:
        settings = settings or Settings()
        if settings.instance is None:
            settings = settings.model_copy(update={"instance": f"{name}-1"})
        clock = clock or FakeClock()
        super().__init__(name, settings, clock=clock, health=False)
        self.clock = clock
        self.sender = FakeSender(self.clock, partitions)
        self.sender.on_sent = self._sent
        self.loopback = loopback
        self.dead_letters: list[DeadLetter] = []
        self.skipped: list[tuple[Record, Exception]] = []
        self.consumers: list[Registered] = []
        self.ticking: dict[str, Callable[[], Awaitable[None]]] = {}
        self.readiness: dict[str, Callable[[], bool]] = {}
        self.topics_made: list[str] = []
        self.stored: dict[tuple[str, int, int], Record] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self._undelivered: list[Record] = []
        self._hooks_start: list[Callable[[], Awaitable[None]]] = []
        self._hooks_stop: list[Callable[[], Awaitable[None]]] = []
        self._hooks_drain: list[Callable[[], Awaitable[None]]] = []
        self.failure: BaseException | None = None

    # What a stage calls

    def consume(
        self,
        topic: Topic,
        handler: Handler,
        *,
        group: str,
        concurrency: int | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        urgent: bool = True,
    ) -> None:
        """Register a group consumer."""
        self.consumers.append(Registered(topic.name, handler, group, on_assigned, on_revoked))

    def consume_from(
        self,
        topic_name: str,
        handler: Handler,
        *,
        partition: int = 0,
        offset: int | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Register an assigned reader."""
        self.consumers.append(Registered(topic_name, handler, None))

    def project(
        self,
        topic: Topic,
        apply: Callable[[Record], None],
        *,
        start: Start = Start.BEGINNING,
        since_ms: int | None = None,
        offsets: Callable[[], dict[int, int]] | None = None,
    ) -> Projection:
        """Register a projection."""
        projection = Projection(topic, apply, start=start, since_ms=since_ms, offsets=offsets, stage=self.name)
        positions = dict.fromkeys(range(self.sender.partitions.get(topic.name, 1)), 0)
        projection.begin(positions)
        for partition in positions:
            projection.note_highwater(partition, 0)
        projection.settle()
        self.projections.append(projection)
        return projection

    def follow_control(self) -> None:
        """Feed ``cancellations`` from what is pushed to ``control``."""
        self.project(CONTROL, self.cancellations.apply, start=Start.END)

    def every(self, seconds: float, job: Callable[[], Awaitable[None]], *, name: str) -> None:
        """Register a job for ``tick``."""
        self.ticking[name] = job

    def spawn(self, coro: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run a task until ``stop``."""
        task = asyncio.create_task(coro, name=name)
        self.tasks.append(task)
        return task

    def ready_when(self, name: str, check: Callable[[], bool]) -> None:
        """Register a readiness check."""
        self.readiness[name] = check

    def on_start(self, hook: Callable[[], Awaitable[None]]) -> None:
        """Register a hook that ``start`` awaits."""
        self._hooks_start.append(hook)

    def on_drain(self, hook: Callable[[], Awaitable[None]]) -> None:
        """Register a hook that ``stop`` awaits first."""
        self._hooks_drain.append(hook)

    def fail(self, error: BaseException) -> None:
        """Note why the stage gave up."""
        self.failure = self.failure or error

    def on_stop(self, hook: Callable[[], Awaitable[None]]) -> None:
        """Register a hook that ``stop`` awaits."""
        self._hooks_stop.append(hook)

    async def read_at(self, position: Position) -> Record | None:
        """A record that was pushed or sent."""
        return self.stored.get((position.topic, position.partition, position.offset))

    async def highwater(self, topic: Topic, partition: int | None = None) -> dict[int, int]:
        """The next offset of every partition."""
        count = self.sender.partitions.get(topic.name, 1)
        wanted = range(count) if partition is None else (partition,)
        return {number: self.sender.highwater(topic.name, number) for number in wanted}

    async def ensure_topic(self, name: str, pattern: Topic) -> None:
        """Note that a topic was made."""
        self.topics_made.append(name)

    async def start(self) -> None:
        """Run the start hooks."""
        for hook in self._hooks_start:
            await hook()

    async def stop(self) -> None:
        """Run the drain hooks and the stop hooks, then cancel spawned tasks."""
        for hook in self._hooks_drain:
            await hook()
        for hook in reversed(self._hooks_stop):
            await hook()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    # What a test calls

    async def push(
        self,
        topic: Topic | str,
        message: Message | bytes | None,
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_ms: int | None = None,
    ) -> Record:
        """Put a record into a topic: projections apply it, then every consumer handles it.

        A BadRecord becomes a dead letter; any other error comes out here.
        """
        name = topic if isinstance(topic, str) else topic.name
        value = message.to_bytes() if isinstance(message, Message) else message
        if key is None and isinstance(message, Message):
            key = str(getattr(message, "key", getattr(message, "worker_id", "")))
        raw_key = key.encode() if isinstance(key, str) else key
        made = self.sender.record(name, value, raw_key, partition)
        record = Record(
            name, made.partition, made.offset,
            made.timestamp_ms if timestamp_ms is None else timestamp_ms,
            raw_key, value, tuple((headers or {}).items()),
        )  # fmt: skip
        self._store(record)
        self._project(record)
        for consumer in self.consumers:
            if consumer.topic == name:
                await self.handle(consumer.handler, record)
        return record

    async def handle(self, handler: Handler, record: Record) -> None:
        """Run a handler as the intake does, without retries: BadRecord becomes a dead letter."""
        try:
            await handler(record)
        except BadRecord as error:
            self.dead_letters.append(DeadLetter(record, error.code, str(error)))

    async def assign(self, topic: Topic, partitions: set[int]) -> None:
        """Let a consumer gain partitions; returns when its gate opens."""
        for consumer in self.consumers:
            if consumer.topic == topic.name and consumer.on_assigned is not None:
                await consumer.on_assigned(frozenset(partitions))

    async def revoke(self, topic: Topic, partitions: set[int]) -> None:
        """Let a consumer lose partitions."""
        for consumer in self.consumers:
            if consumer.topic == topic.name and consumer.on_revoked is not None:
                await consumer.on_revoked(frozenset(partitions))

    async def tick(self, name: str) -> None:
        """Run a periodic job once."""
        await self.ticking[name]()

    def deliver(self) -> None:
        """Give the projections what was sent since (with ``loopback=False``)."""
        waiting, self._undelivered = self._undelivered, []
        for record in waiting:
            self._project(record)

    @property
    def ready(self) -> bool:
        """Whether every check says yes."""
        return all(check() for check in self.readiness.values())

    def sick(self) -> list[str]:
        """Reasons to restart: none."""
        return []

    def unready(self) -> list[str]:
        """Reasons why no work should come yet."""
        reasons = [f"projection of {p.topic.name} is catching up" for p in self.projections if not p.caught_up]
        return reasons + [name for name, check in self.readiness.items() if not check()]

    @property
    def groups(self) -> dict[str, str | None]:
        """Consumer group (None: assigned) by topic."""
        return {consumer.topic: consumer.group for consumer in self.consumers}

    def _sent(self, record: Record) -> None:
        self._store(record)
        if self.loopback:
            self._project(record)
        else:
            self._undelivered.append(record)

    def _store(self, record: Record) -> None:
        self.stored[record.topic, record.partition, record.offset] = record

    def _project(self, record: Record) -> None:
        for projection in self.projections:
            if projection.topic.name == record.topic:
                try:
                    projection.take(record)
                except Exception as error:  # skipped, as the real reader does; kept here so that tests can see it
                    self.skipped.append((record, error))
                projection.settle()
