"""The audit stage on the bus: decisions, lifecycle and dead letters in groups, registrations as a projection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from schemas.decision import Decision
from schemas.lifecycle import Lifecycle
from schemas.types import Message
from schemas.worker import Worker
from services.audit import migrate
from services.audit.batches import Batches
from services.audit.database import database_url, describe, open_engine
from services.audit.faults import NotMigrated
from services.audit.moments import moment
from services.audit.rows import Rows, dead_letter_rows, decision_rows, lifecycle_rows, retired_rows, worker_rows
from services.audit.writer import Writer
from services.runtime.bus import Record
from services.runtime.errors import BadRecord
from services.runtime.metrics import AUDIT_BATCH_RECORDS, AUDIT_DATABASE_UP, AUDIT_RECORDS_REJECTED, AUDIT_WRITE_SECONDS
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import DEAD_LETTERS, DECISIONS, LIFECYCLE, WORKERS

GROUP = "audit"
HEALTH_SECONDS = 5.0
MAINTENANCE_SECONDS = 3600.0


def build(settings: Settings, service: Service, engine: AsyncEngine | None = None) -> None:
    """Register the stage. ``engine`` is opened from the settings unless given; the service's stop disposes of it."""
    store = Store(settings, service, engine or open_engine(settings))
    together = max(settings.concurrency, 2 * settings.audit_batch)
    for topic, handler in (
        (DECISIONS, store.take_decision),
        (LIFECYCLE, store.take_fact),
        (DEAD_LETTERS, store.take_dead_letter),
    ):
        service.consume(topic, handler, group=GROUP, concurrency=together, urgent=False)
    service.project(WORKERS, store.take_worker)
    service.ready_when("database", lambda: store.up)
    service.every(HEALTH_SECONDS, store.check, name="audit-database")
    service.every(MAINTENANCE_SECONDS, store.maintain, name="audit-retention")
    service.on_start(store.begin)
    service.on_stop(store.close)


class Store:
    """The database as this stage sees it: records in, and whether it is there."""

    def __init__(self, settings: Settings, service: Service, engine: AsyncEngine) -> None:
        self._service = service
        self._engine = engine
        self._log = service.log
        self._place = describe(database_url(settings))
        self._migrated = False
        self._closed = False
        self._problem: str | None = "not asked yet"
        self._writer = Writer(engine, lambda: moment(service.clock.now_ms()), settings.audit_retention_days)
        self._batches = Batches(
            self._write,
            settings.audit_batch,
            spawn=lambda work: service.spawn(work, name="audit-write"),
            linger=settings.audit_linger_seconds,
            away=self._note,
        )

    @property
    def up(self) -> bool:
        """Whether the database answered last time, with the schema this build writes."""
        return self._problem is None

    async def take_decision(self, record: Record) -> None:
        """One record of ``decisions``: in the store when this returns."""
        await self._batches.add(decision_rows(_decoded(Decision, record), record))

    async def take_fact(self, record: Record) -> None:
        """One record of ``lifecycle``."""
        await self._batches.add(lifecycle_rows(_decoded(Lifecycle, record)))

    async def take_dead_letter(self, record: Record) -> None:
        """One dead letter. It never makes another: what the store can't take is logged and counted."""
        try:
            await self._batches.add(dead_letter_rows(record))
        except BadRecord as error:
            AUDIT_RECORDS_REJECTED.labels(DEAD_LETTERS.name).inc()
            self._log.error(
                "dead letter not stored", offset=record.offset, partition=record.partition, error=str(error)
            )

    def take_worker(self, record: Record) -> None:
        """One registration or tombstone. The topic is compacted and read from its start, so nothing is lost."""
        rows = retired_rows(record) if record.value is None else worker_rows(_decoded(Worker, record))
        self._service.spawn(self._store_worker(rows), name="audit-worker")

    async def begin(self) -> None:
        """Look at the database once, so that a fresh start says at once what is missing."""
        await self.check()
        if self.up:
            await self.maintain()

    async def check(self) -> None:
        """Ask the database whether it is there and migrated."""
        try:
            await self._require_schema(again=True)
        except Exception as error:
            self._note(error)
        else:
            self._note(None)

    async def maintain(self) -> None:
        """Make coming days' partitions, forget days past retention."""
        if self.up:
            gone = await self._writer.maintain()
            if gone:
                self._log.info("audit retention", gone=gone)

    async def close(self) -> None:
        """Give the connections back. A batch that still waits for the database stays unwritten and uncommitted."""
        self._closed = True
        await self._engine.dispose()

    async def _store_worker(self, rows: Rows) -> None:
        try:
            await self._batches.add(rows)
        except BadRecord as error:
            AUDIT_RECORDS_REJECTED.labels(WORKERS.name).inc()
            self._log.error("registration not stored", error=str(error))

    async def _write(self, batch: Sequence[Rows]) -> None:
        if self._closed:
            raise ConnectionError("the stage is stopping")
        await self._require_schema()
        with AUDIT_WRITE_SECONDS.time():
            await self._writer.write(batch)
        AUDIT_BATCH_RECORDS.observe(len(batch))

    async def _require_schema(self, again: bool = False) -> None:
        if self._migrated and not again:
            return
        found, expected = await migrate.current(self._engine), migrate.head()
        self._migrated = found == expected
        if not self._migrated:
            raise NotMigrated(found, expected)

    def _note(self, error: BaseException | None) -> None:
        problem = None if error is None else f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        if problem is not None and problem != self._problem:
            self._log.warning("audit store away", database=self._place, error=problem)
        elif problem is None and self._problem is not None:
            self._log.info("audit store ready", database=self._place)
        self._problem = problem
        AUDIT_DATABASE_UP.set(0 if problem else 1)


Decoded = TypeVar("Decoded", bound=Message)


def _decoded(kind: type[Decoded], record: Record) -> Decoded:
    try:
        return kind.from_bytes(record.value or b"")
    except ValueError as error:
        raise BadRecord("invalid_message", f"{record.topic} record: {error}") from None
