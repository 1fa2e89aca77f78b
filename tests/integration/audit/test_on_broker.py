"""The stage on a real broker: everything published is in the store once, also after a stop in the middle."""

from __future__ import annotations

import asyncio

import pytest

from schemas.lifecycle import LifecycleEvent
from services.audit import app, migrate, tables
from services.audit.database import open_engine
from services.runtime.admin import create_topics
from services.runtime.dead_letters import headers_of
from services.runtime.sender import KafkaSender
from services.runtime.service import Service
from services.runtime.topics import DEAD_LETTERS, DECISIONS, LIFECYCLE, WORKERS
from tests.fakes.audit_records import decision, fact, finished, record_of, worker
from tests.integration.audit.conftest import rows_in

REQUESTS = 60


@pytest.fixture
async def bus_settings(broker, tmp_path):
    url = f"sqlite+aiosqlite:///{tmp_path}/audit.sqlite3"
    # The records are of a fixed day: no retention may take them.
    settings = broker.settings(tmp_path, database_url=url, audit_batch=20, audit_retention_days=36_500)
    await create_topics(settings)
    await migrate.upgrade(settings)
    return settings


@pytest.fixture
async def sender(bus_settings):
    sender = KafkaSender(bus_settings, "test")
    await sender.start()
    yield sender
    await sender.stop()


@pytest.fixture
async def store(bus_settings):
    engine = open_engine(bus_settings)
    yield engine
    await engine.dispose()


async def publish(sender, numbers):
    """A request's decision and facts, the facts of each in an order of their own."""
    for number in numbers:
        name = f"r{number}"
        facts = [fact(LifecycleEvent.FIRST_TOKEN, name, after_ms=50), finished(name)]
        sends = [sender.send(DECISIONS.name, decision(name), key=f"/{name}")]
        sends += [sender.send(LIFECYCLE.name, one, key=one.key) for one in (reversed(facts) if number % 2 else facts)]
        await asyncio.gather(*sends)


async def stage(settings):
    service = Service("audit", settings, health=False)
    app.build(settings, service)
    await service.start()
    return service


async def stored(engine, table, count):
    """Wait until a table has so many rows; the test's own timeout bounds it."""
    while len(rows := await rows_in(engine, table)) < count:  # noqa: ASYNC110 - a database has no event to wait for
        await asyncio.sleep(0.05)
    return rows


async def test_everything_is_stored_once_also_across_a_restart(bus_settings, sender, store):
    first = await stage(bus_settings)
    await publish(sender, range(REQUESTS // 2))
    await sender.send(WORKERS.name, worker(), key="w1")
    letter = record_of(decision("bad"))
    await sender.send_raw(
        DEAD_LETTERS.name, b"<html>", key=b"/bad", headers=headers_of(letter, "media", "invalid_message", "no JSON")
    )
    await stored(store, tables.decisions, 1)
    publishing = asyncio.ensure_future(publish(sender, range(REQUESTS // 2, REQUESTS)))
    await first.stop()
    await publishing
    second = await stage(bus_settings)
    decisions = await stored(store, tables.decisions, REQUESTS)
    await stored(store, tables.dead_letters, 1)
    await stored(store, tables.workers, 1)
    outcomes = await stored(store, tables.outcomes, REQUESTS)
    while any(row["status"] is None or row["ttft_ms"] is None for row in outcomes):
        await asyncio.sleep(0.05)
        outcomes = await rows_in(store, tables.outcomes)
    await second.stop()
    assert sorted(row["request_id"] for row in decisions) == sorted(f"r{number}" for number in range(REQUESTS))
    assert {(row["status"], row["ttft_ms"], row["cached_tokens"]) for row in outcomes} == {("finished", 50, 48)}
    assert len(await rows_in(store, tables.candidates)) == 2 * REQUESTS
