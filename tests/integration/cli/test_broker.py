"""What commands do with Kafka, on real brokers."""

from __future__ import annotations

import pytest

from schemas.control import Control
from schemas.decision import Position
from services.cli.broker import KafkaBroker
from services.cli.letter import Letter
from services.runtime.dead_letters import headers_of
from services.runtime.topics import CONTROL, DEAD_LETTERS, REQUESTS, WORKERS
from tests.fakes.audit_records import decision, record_of, worker


@pytest.fixture
async def broker_of(settings):
    async with KafkaBroker(settings) as broker:
        yield broker


async def collect(broker, topic):
    return [record async for record in broker.read_all(topic)]


async def test_reading_a_topic_ends_at_its_end(broker_of):
    assert await collect(broker_of, WORKERS.name) == []
    for number in range(5):
        await broker_of.sender.send(WORKERS.name, worker(f"w{number}"), key=f"w{number}")
    await broker_of.sender.send(WORKERS.name, None, key="w0")
    records = await collect(broker_of, WORKERS.name)
    assert [record.key for record in records] == [b"w0", b"w1", b"w2", b"w3", b"w4", b"w0"]
    assert records[-1].value is None


async def test_one_record_by_its_position(broker_of):
    at = await broker_of.sender.send(WORKERS.name, worker(), key="w1")
    record = await broker_of.read_at(at)
    assert record is not None
    assert record.key == b"w1"
    assert await broker_of.read_at(Position(topic=WORKERS.name, partition=0, offset=at.offset + 7)) is None


async def test_topics_are_made_once(broker_of):
    assert await broker_of.create_topics() == []
    assert all(state.right for state in await broker_of.list_topics())


async def bury(broker, value):
    headers = headers_of(record_of(decision("bad")), "media", "invalid_message", "no JSON")
    headers["dlq-topic"] = REQUESTS.name.encode()
    await broker.sender.send_raw(DEAD_LETTERS.name, value, key=b"/bad", headers=headers | {"x-own": b"1"})


async def test_a_dead_letter_is_listed_and_sent_again(broker_of, in_thread):
    await bury(broker_of, b"<html>")
    (row,) = (await in_thread("dlq", "list")).value
    assert (row["code"], row["key"], row["size"]) == ("invalid_message", "/bad", 6)
    assert (await in_thread("dlq", "show", row["id"])).value["value"] == "<html>"
    assert (await in_thread("dlq", "redrive", row["id"])).code == 0
    (again,) = await collect(broker_of, REQUESTS.name)
    assert (again.key, again.value) == (b"/bad", b"<html>")
    assert dict(again.headers) == {"x-own": b"1", "dlq-redriven": b"1"}
    assert Letter.of(again).redriven == 1


async def test_a_worker_is_drained_and_retired(broker_of, in_thread):
    await broker_of.sender.send(WORKERS.name, worker(), key="w1")
    assert [row["worker_id"] for row in (await in_thread("worker", "list")).value] == ["w1"]
    assert (await in_thread("worker", "drain", "w1")).code == 0
    (order,) = await collect(broker_of, CONTROL.name)
    assert order.value is not None
    assert Control.from_bytes(order.value).worker_id == "w1"
    assert (await in_thread("worker", "retire", "w1")).value["state"] == "retired"
    assert (await in_thread("worker", "list")).value[0]["state"] == "retired"
