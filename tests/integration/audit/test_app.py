"""The stage on a service without broker, with real databases: records in, rows out, and a database that goes away."""

from __future__ import annotations

import asyncio

import pytest

from schemas.lifecycle import LifecycleEvent
from services.audit import app, migrate, tables
from services.audit.database import open_engine
from services.runtime.settings import Settings
from services.runtime.topics import DEAD_LETTERS, DECISIONS, LIFECYCLE, WORKERS
from tests.fakes.audit_records import NOON_MS, dead_letter, decision, fact, finished, worker
from tests.fakes.clock import FakeClock
from tests.fakes.harness import Harness
from tests.integration.audit.conftest import rows_in


@pytest.fixture
async def service(settings, engine):
    """The audit stage, started on a migrated store."""
    harness = Harness("audit", settings, clock=FakeClock(NOON_MS))
    app.build(settings, harness, engine)
    await harness.start()
    yield harness
    await harness.stop()


async def until(check):
    """Wait for something the stage does in the background; the test's own timeout bounds it."""
    while not await check():  # noqa: ASYNC110 - a database has no event to wait for
        await asyncio.sleep(0.01)


async def push_dead_letter(service, letter):
    await service.push(DEAD_LETTERS, letter.value, key=letter.key, headers=dict(letter.headers))


async def test_groups_and_readiness(service):
    assert service.groups == {DECISIONS.name: "audit", LIFECYCLE.name: "audit", DEAD_LETTERS.name: "audit"}
    assert service.ready


async def test_a_request_from_acceptance_to_its_end(service, engine):
    await service.push(LIFECYCLE, fact(LifecycleEvent.ACCEPTED, attempt=0, model="qwen3-vl"))
    await service.push(LIFECYCLE, finished())  # before the decision: another topic
    await service.push(DECISIONS, decision())
    await service.push(LIFECYCLE, fact(LifecycleEvent.FIRST_TOKEN, after_ms=80))
    (outcome,) = await rows_in(engine, tables.outcomes)
    assert (outcome["status"], outcome["ttft_ms"], outcome["cached_tokens"]) == ("finished", 80, 48)
    assert len(await rows_in(engine, tables.decisions)) == 1


async def test_redelivery_changes_nothing(service, engine):
    for _ in range(3):
        await service.push(DECISIONS, decision(), partition=0)
        await service.push(LIFECYCLE, finished())
    assert len(await rows_in(engine, tables.decisions)) == 1
    assert (await rows_in(engine, tables.decisions))[0]["record_offset"] == 0


async def test_a_flood_is_written_in_batches(service, engine):
    await asyncio.gather(*(service.push(DECISIONS, decision(f"r{number}")) for number in range(200)))
    assert len(await rows_in(engine, tables.decisions)) == 200


@pytest.mark.parametrize("value", [b"", b"null", b"<html>", b"[" * 10_000, b'{"request_id": 1}', b"\xff\x00"])
async def test_a_record_that_is_no_message_is_a_bad_record(service, value):
    await service.push(DECISIONS, value, key="k")
    await service.push(LIFECYCLE, value, key="k")
    assert [letter.code for letter in service.dead_letters] == ["invalid_message"] * 2


async def test_values_no_column_holds_are_a_bad_record_and_the_rest_is_written(service, engine):
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite's integers take what PostgreSQL's refuse")
    await asyncio.gather(
        service.push(DECISIONS, decision("good")),
        service.push(DECISIONS, decision("bad", prompt_tokens=2**40)),
        service.push(DECISIONS, decision("fine")),
    )
    assert [(letter.record.key, letter.code) for letter in service.dead_letters] == [(b"/bad", "audit_rejected")]
    assert [row["request_id"] for row in await rows_in(engine, tables.decisions)] == ["fine", "good"]


async def test_registrations_come_through_the_projection(service, engine):
    await service.push(WORKERS, worker(), key="w1")
    await service.push(WORKERS, worker("w2"), key="w2")
    await service.push(WORKERS, None, key="w2", timestamp_ms=NOON_MS + 60_000)

    async def stored():
        rows = await rows_in(engine, tables.workers)
        return {row["worker_id"]: row["state"] for row in rows} == {"w1": "live", "w2": "retired"}

    await until(stored)


async def test_dead_letters_are_stored_and_never_make_another(service, engine):
    await push_dead_letter(service, dead_letter(5))
    await push_dead_letter(service, dead_letter(6, dlq_timestamp_ms="not a number"))
    assert [row["record_offset"] for row in await rows_in(engine, tables.dead_letters)] == [5, 6]
    assert service.dead_letters == []


async def test_retention_runs_by_the_clock(service, engine):
    await service.push(DECISIONS, decision())
    service.clock.advance(40 * 86_400)
    await service.tick("audit-retention")
    assert await rows_in(engine, tables.decisions) == []


async def test_without_its_schema_the_stage_is_not_ready_and_keeps_what_comes(settings, empty):
    harness = Harness("audit", settings, clock=FakeClock(NOON_MS))
    app.build(settings, harness, empty)
    await harness.start()
    assert not harness.ready
    writing = asyncio.ensure_future(harness.push(DECISIONS, decision()))
    await asyncio.sleep(0.05)
    assert not writing.done()
    await migrate.upgrade_engine(empty)
    await writing
    assert harness.ready
    assert len(await rows_in(empty, tables.decisions)) == 1
    await harness.stop()


@pytest.mark.postgres
async def test_a_restart_of_postgresql_loses_nothing(postgres):
    settings = Settings(database_url=postgres.new_database())
    engine = open_engine(settings)
    await migrate.upgrade_engine(engine)
    harness = Harness("audit", settings, clock=FakeClock(NOON_MS))
    app.build(settings, harness, engine)
    await harness.start()
    await harness.push(DECISIONS, decision("before"))
    await asyncio.to_thread(postgres.stop)
    try:
        writing = [asyncio.ensure_future(harness.push(DECISIONS, decision(f"during-{number}"))) for number in range(20)]
        await harness.tick("audit-database")
        assert not harness.ready
        assert not any(task.done() for task in writing)
    finally:
        postgres.start()  # in this thread: the server ends with the thread that started it
    await asyncio.gather(*writing)
    await harness.tick("audit-database")
    assert harness.ready
    assert harness.dead_letters == []
    assert len(await rows_in(engine, tables.decisions)) == 21
    await harness.stop()
