"""The consume discipline on real brokers."""

from __future__ import annotations

import asyncio

import pytest

from services.runtime.bus import Record
from services.runtime.errors import BadRecord, Transient
from services.runtime.lookup import Lookup
from services.runtime.metrics import COMMIT_FAILURES, CONSUMER_LAG, OLDEST_UNHANDLED_SECONDS
from services.runtime.sender import KafkaSender
from services.runtime.service import StageStopped
from services.runtime.settings import Settings
from services.runtime.topics import DEAD_LETTERS, REQUESTS, RESPONSES, WORK
from tests.integration.runtime.conftest import MakeService
from tests.waiting import Collected, eventually


async def test_poison_of_every_kind_becomes_dead_letters_and_the_good_records_go_on(
    make_service: MakeService, sender: KafkaSender
) -> None:
    seen, letters = Collected(), Collected()

    async def handle(record: Record) -> None:
        match record.value:
            case b"bad":
                raise BadRecord("not_json", "expected JSON, see https://h/?token=SECRET")
            case b"bug":
                raise KeyError("bug")
            case _:
                seen.add(record)

    async def keep(record: Record) -> None:
        letters.add(record)

    service = make_service(retries=1)
    service.consume(REQUESTS, handle, group="media")
    service.consume(DEAD_LETTERS, keep, group="audit")
    await service.start()
    # Headers that are no text, no key, no value: whatever a producer can write.
    await sender.send_raw(REQUESTS.name, b"bad", key=b"k", headers={"x": b"\xff\xfe", "dlq-code": b"forged"})
    await sender.send_raw(REQUESTS.name, b"bug", key=None)
    await sender.send_raw(REQUESTS.name, None, key=b"k")
    await sender.send_raw(REQUESTS.name, b"good", key=b"\xff")
    await letters.count(2)
    await seen.count(2)
    assert sorted(seen.values) == [b"", b"good"]
    by_value = {record.value: dict(record.headers) for record in letters.records}
    assert by_value[b"bad"]["dlq-code"] == b"not_json"
    assert by_value[b"bad"]["x"] == b"\xff\xfe"
    assert by_value[b"bad"]["dlq-topic"] == REQUESTS.name.encode()
    assert b"SECRET" not in by_value[b"bad"]["dlq-message"]
    assert by_value[b"bug"]["dlq-code"] == b"internal_error"
    assert service.stop_rule.in_a_row <= 1


async def test_a_reply_to_header_is_not_answered(make_service: MakeService, sender: KafkaSender) -> None:
    service, answers = make_service(), Collected()
    await service.ensure_topic("kvroute.responses.victim", RESPONSES)

    async def handle(record: Record) -> str:
        answers.add(record)
        return "an answer nobody asked for"

    service.consume(REQUESTS, handle, group="media")  # type: ignore[arg-type]
    await service.start()
    outside = f"{service.settings.topic_prefix}kvroute.responses.victim"
    await sender.send_raw(REQUESTS.name, b"{}", key=b"k", headers={"reply_to": outside.encode()})
    await answers.count(1)
    await eventually(lambda: service.intakes[0].in_flight == 0)
    lookup = Lookup(service.settings)
    assert await lookup.ends("kvroute.responses.victim", [0]) == {0: 0}
    await lookup.stop()


async def test_one_slow_record_holds_nobody_else_and_is_read_again_after_a_restart(
    make_service: MakeService, sender: KafkaSender
) -> None:
    first, again, forever = Collected(), Collected(), asyncio.Event()

    async def slow(record: Record) -> None:
        if record.value == b"0":
            await forever.wait()
        first.add(record)

    service = make_service(drain_seconds=0.0)
    service.consume(REQUESTS, slow, group="media")
    await service.start()
    for n in range(100):
        await sender.send_raw(REQUESTS.name, b"%d" % n, key=b"k%d" % n, partition=1)
    await first.count(99)
    await service.stop()

    async def quick(record: Record) -> None:
        again.add(record)

    second = make_service()
    second.consume(REQUESTS, quick, group="media")
    await second.start()
    await again.count(100)
    assert again.values[0] == b"0"


async def test_the_gate_holds_records_until_it_opens(make_service: MakeService, sender: KafkaSender) -> None:
    service, seen, gate = make_service("router"), Collected(), asyncio.Event()
    gained: list[frozenset[int]] = []

    async def handle(record: Record) -> None:
        assert gate.is_set()
        seen.add(record)

    async def on_assigned(partitions: frozenset[int]) -> None:
        gained.append(partitions)
        await gate.wait()

    service.consume(REQUESTS, handle, group="router", on_assigned=on_assigned)
    await service.start()
    await sender.send_raw(REQUESTS.name, b"x", key=b"k")
    await eventually(lambda: gained)
    assert gained == [frozenset({0, 1, 2})]
    gate.set()
    await seen.count(1)


async def test_an_outage_stops_the_stage_and_loses_nothing(make_service: MakeService, sender: KafkaSender) -> None:
    database_away = True
    stored, letters = Collected(), Collected()

    async def handle(record: Record) -> None:
        if database_away:
            raise Transient("database away")
        stored.add(record)

    async def keep(record: Record) -> None:
        letters.add(record)

    service = make_service("audit", retries=0, stop_after_failures=5, drain_seconds=0.0)
    service.consume(REQUESTS, handle, group="audit")
    await service.start()
    for n in range(20):
        await sender.send_raw(REQUESTS.name, b"%d" % n, key=b"k%d" % n)
    await asyncio.wait_for(service.wait_failed(), 30)
    await service.stop()
    with pytest.raises(StageStopped, match=r"audit stopped after \d+ failures of its own in a row.*database away"):
        service.raise_failure()
    assert any("database away" in reason for reason in service.sick())
    database_away = False
    second = make_service("audit")
    second.consume(REQUESTS, handle, group="audit")
    second.consume(DEAD_LETTERS, keep, group="audit")
    await second.start()
    await stored.count(20)
    assert letters.records == []


async def test_assigned_readers_start_at_the_end_or_where_they_are_told(
    make_service: MakeService, sender: KafkaSender
) -> None:
    topic = "kvroute.work.w1.v1"
    await make_service("other").ensure_topic(topic, WORK)
    await asyncio.gather(*(sender.send_raw(topic, b"old%d" % n, key=b"k") for n in range(10)))
    from_end, from_seven = Collected(), Collected()

    async def at_end(record: Record) -> None:
        from_end.add(record)

    async def at_seven(record: Record) -> None:
        from_seven.add(record)

    service = make_service("agent")
    service.consume_from(topic, at_end)
    service.consume_from(topic, at_seven, offset=7)
    await service.start()
    await sender.send_raw(topic, b"new", key=b"k")
    await from_end.count(1)
    await from_seven.count(4)
    assert from_end.values == [b"new"]
    assert from_seven.values == [b"old7", b"old8", b"old9", b"new"]


async def test_lag_and_age_are_measured(make_service: MakeService, sender: KafkaSender) -> None:
    service, held = make_service(), asyncio.Event()

    async def handle(_: Record) -> None:
        await held.wait()

    service.consume(REQUESTS, handle, group="media")
    await service.start()
    for n in range(5):
        await sender.send_raw(REQUESTS.name, b"x", key=b"%d" % n, partition=0)

    def lag() -> float:
        return float(CONSUMER_LAG.labels("media", REQUESTS.name, "0")._value.get())

    await eventually(lambda: lag() == 5)
    age = OLDEST_UNHANDLED_SECONDS.labels("media", REQUESTS.name)
    await eventually(lambda: age._value.get() > 0.5)
    held.set()
    await eventually(lambda: lag() == 0)
    await eventually(lambda: age._value.get() == 0)


async def test_a_failed_commit_is_counted_and_nothing_stops(make_service: MakeService, sender: KafkaSender) -> None:
    service, seen = make_service("layout"), Collected()

    async def handle(record: Record) -> None:
        seen.add(record)

    service.consume(REQUESTS, handle, group="layout")
    await service.start()
    failures = COMMIT_FAILURES.labels("layout", REQUESTS.name)
    before = failures._value.get()
    consumer = service.subscriptions[0].consumer
    assert consumer is not None
    real = consumer.commit

    async def broken(_: object) -> None:
        raise RuntimeError("coordinator away")

    consumer.commit = broken
    await sender.send_raw(REQUESTS.name, b"1", key=b"k")
    await eventually(lambda: failures._value.get() >= before + 2)
    consumer.commit = real
    await sender.send_raw(REQUESTS.name, b"2", key=b"k")
    await seen.count(2)
    await eventually(lambda: service.intakes[0].in_flight == 0)


async def test_the_prefix_keeps_two_fleets_on_one_broker_apart(
    make_service: MakeService, sender: KafkaSender, settings: Settings
) -> None:
    from services.runtime.admin import create_topics

    other = settings.model_copy(update={"topic_prefix": settings.topic_prefix + "green."})
    await create_topics(other)
    blue, green = Collected(), Collected()

    async def into_blue(record: Record) -> None:
        blue.add(record)

    async def into_green(record: Record) -> None:
        green.add(record)

    first = make_service()
    first.consume(REQUESTS, into_blue, group="media")
    second = make_service(topic_prefix=other.topic_prefix)
    second.consume(REQUESTS, into_green, group="media")
    await asyncio.gather(first.start(), second.start())
    await first.sender.send_raw(REQUESTS.name, b"blue", key=b"k")
    await second.sender.send_raw(REQUESTS.name, b"green", key=b"k")
    await blue.count(1)
    await green.count(1)
    assert (blue.values, green.values) == ([b"blue"], [b"green"])
    assert blue.records[0].topic == green.records[0].topic == REQUESTS.name
