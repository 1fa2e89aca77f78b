"""One stage in this process: what it reads, what it sends, what it does by the clock, and whether it is well."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from functools import partial
from typing import Any

from schemas.decision import Position
from services.runtime.admin import Admin
from services.runtime.assigned import AssignedReader
from services.runtime.bus import Record, Sender
from services.runtime.cancellations import Cancellations
from services.runtime.clock import Clock, SystemClock
from services.runtime.dead_letters import DeadLetters
from services.runtime.errors import KvrouteError
from services.runtime.event_loop import settle_memory
from services.runtime.health import HealthServer
from services.runtime.intake import Commit, Intake, OnPartitions
from services.runtime.jobs import Jobs
from services.runtime.logs import get_logger
from services.runtime.lookup import Lookup
from services.runtime.projection import Projection, Start
from services.runtime.projection_reader import ProjectionReader
from services.runtime.retry import Backoff
from services.runtime.sender import KafkaSender
from services.runtime.settings import Settings
from services.runtime.stop_rule import StopRule
from services.runtime.subscription import Subscription
from services.runtime.topics import CONTROL, Topic
from services.runtime.treatment import Handler, Treatment
from services.runtime.vitals import COMMIT_SECONDS, Vitals, WitnessOf


class Phase(Enum):
    """Where a service is in its life. What may be registered until when follows from it."""

    REGISTERING = 0
    STARTING = 1
    RUNNING = 2
    STOPPING = 3


class StageStopped(KvrouteError):
    """The stage gave up: too many failures of its own in a row, or a part of it died."""


class Service:
    """Connects a stage to the broker.

    Register first (``consume``, ``consume_from``, ``project``, ``every``, ``ready_when``), then ``start`` or ``run``.
    ``start`` connects the sender, lets every projection catch up, and only then takes records.
    """

    sender: Sender

    def __init__(
        self,
        name: str,
        settings: Settings,
        *,
        clock: Clock | None = None,
        projections: ProjectionReader | None = None,
        health: bool = True,
    ) -> None:
        self.name = name
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.instance = settings.instance or f"{socket.gethostname()[:40]}-{os.getpid()}"
        self.log = get_logger(name).bind(stage=name, instance=self.instance)
        self.stop_rule = StopRule(settings.stop_after_failures)
        self.cancellations = Cancellations(self.clock)
        self.projections: list[Projection] = []
        self.sender = self.kafka_sender = KafkaSender(settings, name)
        self.reader = projections or ProjectionReader(settings)
        self._lookup = Lookup(settings)
        self.subscriptions: list[Subscription] = []
        self.assigned_readers: list[AssignedReader] = []
        self._jobs = Jobs(name, self.log)
        self.checks: dict[str, Callable[[], bool]] = {}
        self._starting: list[Callable[[], Awaitable[None]]] = []
        self._stopping: list[Callable[[], Awaitable[None]]] = []
        self._before_drain: list[Callable[[], Awaitable[None]]] = []
        self._vitals = Vitals(self)
        self._health = (
            HealthServer(settings.health_host, settings.health_port, sick=self.sick, unready=self.unready)
            if health and settings.health_port
            else None
        )
        self.phase = Phase.REGISTERING
        self._failed = asyncio.Event()
        self.failure: BaseException | None = None

    # Registering

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
        """Read a topic in a consumer group.

        Records with the same key are handled one after another, others side by side up to ``concurrency``. A handler
        raises BadRecord (dead letter), Transient (tried again, then dead letter) or anything else (our own failure).
        ``on_assigned`` is awaited before records of newly gained partitions are handled. ``urgent=False`` is for
        readers off the request path: the embedded broker is asked less often for them.
        """
        self._must_be(Phase.STARTING, f"consume {topic.name}")
        self.subscriptions.append(
            Subscription(
                topic,
                group,
                self.settings,
                partial(self._intake, topic.name, handler, concurrency, on_assigned, on_revoked),
                stage=self.name,
                fail=self.fail,
                urgent=urgent,
            )
        )

    def consume_from(
        self,
        topic_name: str,
        handler: Handler,
        *,
        partition: int = 0,
        offset: int | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Read one partition without a group, from ``offset`` or from the end.

        The end is noted before the start hooks run, or after them when a hook registers this.
        """
        self._must_be(Phase.STARTING, f"read {topic_name}")
        make = partial(self._intake, topic_name, handler, concurrency, None, None, None)
        self.assigned_readers.append(AssignedReader(self.settings, topic_name, partition, offset, make))

    def project(
        self,
        topic: Topic,
        apply: Callable[[Record], None],
        *,
        start: Start = Start.BEGINNING,
        since_ms: int | None = None,
        offsets: Callable[[], dict[int, int]] | None = None,
    ) -> Projection:
        """Read all partitions of a topic in order. ``apply`` is quick; what it raises is counted and skipped.

        ``offsets`` (partition to first offset; -1: the end; missing: the beginning) is asked when the projection
        starts: after those without ``offsets`` have caught up.
        """
        self._must_be(Phase.REGISTERING, f"project {topic.name}")
        projection = Projection(topic, apply, start=start, since_ms=since_ms, offsets=offsets, stage=self.name)
        self.projections.append(projection)
        return projection

    def follow_control(self) -> None:
        """Feed ``cancellations`` from ``control``, from its end at the start."""
        self.project(CONTROL, self.cancellations.apply, start=Start.END)

    def every(self, seconds: float, job: Callable[[], Awaitable[None]], *, name: str) -> None:
        """Run a job every so many seconds while the service runs. What it raises is counted and logged."""
        self._jobs.every(seconds, job, name)

    def spawn(self, coro: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run a task that ends with the service. What it raises is logged."""
        return self._jobs.spawn(coro, name)

    def ready_when(self, name: str, check: Callable[[], bool]) -> None:
        """Be ready only while ``check`` says so; ``name`` is the reason shown when it does not."""
        self.checks[name] = check

    def on_start(self, hook: Callable[[], Awaitable[None]]) -> None:
        """Await a hook when the sender is connected and projections have caught up, before records are taken."""
        self._starting.append(hook)

    def on_drain(self, hook: Callable[[], Awaitable[None]]) -> None:
        """Await a hook when the stage is asked to stop, while it still takes records: to say so where work is given."""
        self._before_drain.append(hook)

    def on_stop(self, hook: Callable[[], Awaitable[None]]) -> None:
        """Await a hook when records in flight are finished, while the sender is still connected. Last in, first out."""
        self._stopping.append(hook)

    # Asking the broker

    async def read_at(self, position: Position) -> Record | None:
        """One record at a stored position, None when it is gone. Raises Transient."""
        return await self._lookup.read(position)

    async def highwater(self, topic: Topic, partition: int | None = None) -> dict[int, int]:
        """Offset of the next record, by partition. Raises Transient."""
        if partition is not None:
            return await self._lookup.ends(topic.name, [partition])
        async with Admin(self.settings) as admin:
            count = (await admin.partitions([topic.name])).get(topic.name, 0)
        return await self._lookup.ends(topic.name, range(count))

    async def ensure_topic(self, name: str, pattern: Topic) -> None:
        """Make a work or responses topic unless it exists. Raises Transient or ConfigError."""
        async with Admin(self.settings) as admin:
            await admin.create([(name, pattern)])
            await admin.wait_for([name])

    # Living

    async def start(self) -> None:
        """Connect, catch up, run the start hooks, take records. Raises Transient when the broker can't be reached."""
        if self._health is not None:
            await self._health.start()
        await self.kafka_sender.start()
        await self._wait_for_topics()
        await self._start_projections()
        self.phase = Phase.STARTING
        for reader in self.assigned_readers:
            await reader.note_end(self._lookup)
        for hook in self._starting:
            await hook()
        for reader in self.assigned_readers:
            await reader.start(self._lookup)
        await asyncio.gather(*(subscription.start() for subscription in self.subscriptions))
        self._jobs.every(COMMIT_SECONDS, self._vitals.commit, "commit")
        self._jobs.every(1.0, self._vitals.observe, "observe")
        self._jobs.start()
        self._jobs.spawn(self._vitals.loop_lag.run(), "loop lag")
        self.phase = Phase.RUNNING
        self.log.info("stage started", topics=[s.topic.name for s in self.subscriptions])

    async def stop(self) -> None:
        """Take nothing more, finish what is in flight, commit, disconnect."""
        self.phase = Phase.STOPPING
        for hook in self._before_drain:
            try:
                await hook()
            except Exception:
                self.log.exception("drain hook failed")
        await asyncio.gather(*(intake.drain(self.settings.drain_seconds) for intake in self.intakes))
        for hook in reversed(self._stopping):
            try:
                await hook()
            except Exception:
                self.log.exception("stop hook failed")
        await self._jobs.stop()
        for reader in self.assigned_readers:
            await reader.stop()
        await asyncio.gather(*(subscription.stop() for subscription in self.subscriptions))
        await self.reader.remove(self.projections)
        await self._lookup.stop()
        await self.kafka_sender.stop()
        if self._health is not None:
            await self._health.stop()
        self.log.info("stage stopped", handled=sum(intake.handled for intake in self.intakes))

    async def run(self) -> None:
        """Start, wait for SIGTERM or SIGINT, drain and stop. Raises StageStopped when the stage gave up by itself."""
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked.set)
        try:
            await self.start()
            settle_memory()
            await self.wait_failed(asked)
        finally:
            await self.stop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        self.raise_failure()

    async def wait_failed(self, or_asked: asyncio.Event | None = None) -> None:
        """Return when the stage gave up (or when asked to)."""
        waits = [self._failed.wait(), self.stop_rule.tripped.wait()]
        if or_asked is not None:
            waits.append(or_asked.wait())
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def fail(self, error: BaseException) -> None:
        """Give up: a part of the stage died in a way only a new start heals."""
        if self.failure is None:
            self.failure = error
            self.log.error("stage gives up", error=repr(error))
        self._failed.set()

    def raise_failure(self) -> None:
        """Raise StageStopped when the stage gave up."""
        if self.failure is not None:
            raise StageStopped(f"stage {self.name} stopped: {self.failure!r}") from self.failure
        if self.stop_rule.tripped.is_set():
            raise StageStopped(
                f"stage {self.name} stopped after {self.stop_rule.in_a_row} failures of its own in a row "
                f"(KVROUTE_STOP_AFTER_FAILURES), the last: {self.stop_rule.cause}"
            )

    # Health

    def sick(self) -> list[str]:
        """Reasons why only a restart would help; empty while there is progress."""
        return self._vitals.sick()

    def unready(self) -> list[str]:
        """Reasons why no work should come yet, or any more."""
        return self._vitals.unready()

    @property
    def ready(self) -> bool:
        """Whether /readyz says yes."""
        return not self.unready() and not self.sick()

    @property
    def health_port(self) -> int:
        """The port /healthz answers on, 0 when there is none."""
        return self._health.port if self._health is not None else 0

    @property
    def intakes(self) -> list[Intake]:
        """The intakes of all consumers."""
        return [subscription.intake for subscription in self.subscriptions] + [r.intake for r in self.assigned_readers]

    # Inside

    def _must_be(self, latest: Phase, what: str) -> None:
        if self.phase.value > latest.value:
            raise RuntimeError(f"stage {self.name} is {self.phase.name.lower()}: it is too late to {what}")

    def _intake(
        self,
        topic: str,
        handler: Handler,
        concurrency: int | None,
        gate: OnPartitions | None,
        on_revoked: OnPartitions | None,
        commit: Commit | None,
    ) -> Intake:
        treatment = Treatment(
            handler,
            DeadLetters(self.sender, self.name).bury,
            backoff=Backoff(tries=self.settings.retries),
            stop_rule=self.stop_rule,
            witness=WitnessOf(self.name, topic),
            log=self.log,
        )
        return Intake(
            treatment,
            commit=commit,
            concurrency=concurrency or self.settings.concurrency,
            on_commit_failed=partial(self._vitals.commit_failed, topic),
            gate=gate,
            on_revoked=on_revoked,
        )

    async def _wait_for_topics(self) -> None:
        names = [subscription.topic.name for subscription in self.subscriptions]
        names += [reader.topic for reader in self.assigned_readers]
        async with Admin(self.settings) as admin:
            await admin.wait_for(names)

    async def _start_projections(self) -> None:
        first = [projection for projection in self.projections if projection.offsets is None]
        later = [projection for projection in self.projections if projection.offsets is not None]
        for group in (first, later):
            if group:
                await self.reader.add(group)
                await asyncio.gather(*(projection.wait_caught_up() for projection in group))
