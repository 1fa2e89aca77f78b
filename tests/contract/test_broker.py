"""What kvroute needs of a broker. Tansu and Apache Kafka pass the same tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from schemas.control import Control, ControlKind
from schemas.decision import Position
from services.runtime.admin import create_topics, list_topics
from services.runtime.bus import Record
from services.runtime.errors import BadRecord
from services.runtime.lookup import Lookup
from services.runtime.projection import AT_END, Start
from services.runtime.sender import KafkaSender
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import CONTROL, DEAD_LETTERS, LIFECYCLE, REQUESTS, RESPONSES, TOPICS, WORKERS
from tests.waiting import Collected, eventually


@pytest.fixture
async def sender(settings: Settings) -> AsyncIterator[KafkaSender]:
    sender = KafkaSender(settings, "test")
    await sender.start()
    yield sender
    await sender.stop()


@pytest.fixture
async def lookup(settings: Settings) -> AsyncIterator[Lookup]:
    lookup = Lookup(settings)
    yield lookup
    await lookup.stop()


async def fill(sender: KafkaSender, count: int, topic: str = REQUESTS.name, partition: int | None = None) -> None:
    """Send records 0…count-1 at once: the producer puts them into few batches."""
    await asyncio.gather(
        *(sender.send_raw(topic, b"%d" % n, key=b"k%d" % n, partition=partition) for n in range(count))
    )


class TestTopics:
    async def test_the_table_becomes_topics_once(self, settings: Settings) -> None:
        assert await create_topics(settings) == []
        states = {state.name: state for state in await list_topics(settings)}
        assert set(states) == {topic.name for topic in TOPICS}
        assert states[REQUESTS.name].partitions == 3
        assert states[WORKERS.name].partitions == 1
        assert all(state.right for state in states.values())

    async def test_a_topic_that_does_not_exist_is_a_quick_error_and_is_not_made(
        self, settings: Settings, sender: KafkaSender
    ) -> None:
        for _ in range(2):
            with pytest.raises(BadRecord, match="does not exist"):
                await asyncio.wait_for(sender.send_raw("kvroute.responses.nobody", b"", key=b"k"), 5)
        assert "kvroute.responses.nobody" not in {state.name for state in await list_topics(settings)}

    async def test_a_topic_made_at_run_time_can_be_used_at_once(self, settings: Settings, sender: KafkaSender) -> None:
        service = Service("gateway", settings, health=False)
        await service.ensure_topic("kvroute.responses.gw-1.v1", RESPONSES)
        position = await sender.send_raw("kvroute.responses.gw-1.v1", b"x", key=b"k")
        assert position == Position(topic="kvroute.responses.gw-1.v1", partition=0, offset=0)


class TestRecords:
    async def test_everything_of_a_record_comes_back(self, sender: KafkaSender, lookup: Lookup) -> None:
        headers = {"schema": b"x.v1", "raw": b"\xff\x00", "empty": b""}
        position = await sender.send_raw(REQUESTS.name, b"\x00value", key=b"key", headers=headers)
        record = await lookup.read(position)
        assert record is not None
        assert (record.topic, record.key, record.value) == (REQUESTS.name, b"key", b"\x00value")
        assert dict(record.headers) == headers
        assert record.position == position
        assert record.timestamp_ms > 1_600_000_000_000

    async def test_a_message_carries_its_schema(self, sender: KafkaSender, lookup: Lookup) -> None:
        order = Control(kind=ControlKind.CANCEL, at_ms=5, request_id="r1")
        record = await lookup.read(await sender.send(CONTROL.name, order, key=order.key, headers={"traceparent": "t"}))
        assert record is not None
        assert record.value is not None
        assert Control.from_bytes(record.value) == order
        assert dict(record.headers) == {
            "schema": b"control.v1", "content-type": b"application/json", "traceparent": b"t",
        }  # fmt: skip

    async def test_a_tombstone_has_no_value(self, sender: KafkaSender, lookup: Lookup) -> None:
        record = await lookup.read(await sender.send(WORKERS.name, None, key="w1"))
        assert record is not None
        assert (record.key, record.value) == (b"w1", None)

    async def test_records_up_to_a_mebibyte_pass_and_larger_ones_are_refused(
        self, sender: KafkaSender, lookup: Lookup
    ) -> None:
        record = await lookup.read(await sender.send_raw(REQUESTS.name, b"x" * (1 << 20), key=b"k"))
        assert record is not None
        assert len(record.value or b"") == 1 << 20
        with pytest.raises(BadRecord, match="the limit is 1048576"):
            await sender.send_raw(REQUESTS.name, b"x" * ((1 << 20) + 1), key=b"k")

    async def test_a_dead_letter_of_the_largest_record_fits(self, sender: KafkaSender, lookup: Lookup) -> None:
        largest = (1 << 20) + (60 << 10)
        headers = {"dlq-message": b"m" * 1000, "of-the-record": b"h" * (60 << 10)}
        position = await sender.send_raw(DEAD_LETTERS.name, b"x" * largest, key=b"k" * 1000, headers=headers)
        record = await lookup.read(position)
        assert record is not None
        assert len(record.value or b"") == largest

    async def test_the_same_key_goes_to_the_same_partition_in_order(self, sender: KafkaSender) -> None:
        positions = await asyncio.gather(*(sender.send_raw(REQUESTS.name, b"%d" % n, key=b"k") for n in range(50)))
        assert len({position.partition for position in positions}) == 1
        assert [position.offset for position in positions] == list(range(50))

    async def test_more_than_a_batch_at_once_stays_in_order(self, sender: KafkaSender, lookup: Lookup) -> None:
        value = b"x" * (60 << 10)
        sends = [asyncio.create_task(sender.send_raw(REQUESTS.name, value, key=b"k")) for _ in range(30)]
        await asyncio.sleep(0)
        sends += [asyncio.create_task(sender.send_raw(REQUESTS.name, value, key=b"k")) for _ in range(30)]
        positions = await asyncio.gather(*sends)
        assert [position.offset for position in positions] == list(range(60))


class TestEnds:
    async def test_the_end_is_right_after_batches(self, sender: KafkaSender, lookup: Lookup) -> None:
        assert await lookup.ends(REQUESTS.name, range(3)) == {0: 0, 1: 0, 2: 0}
        await fill(sender, 100, partition=1)
        await fill(sender, 7, partition=1)
        assert await lookup.ends(REQUESTS.name, range(3)) == {0: 0, 1: 107, 2: 0}
        assert await lookup.begins(REQUESTS.name, range(3)) == {0: 0, 1: 0, 2: 0}

    async def test_what_is_not_there_is_none(self, sender: KafkaSender, lookup: Lookup) -> None:
        await fill(sender, 3, partition=0)
        assert await lookup.read(Position(topic=REQUESTS.name, partition=0, offset=3)) is None
        assert await lookup.read(Position(topic=REQUESTS.name, partition=0, offset=999)) is None
        assert await lookup.read(Position(topic=REQUESTS.name, partition=0, offset=2)) is not None


class TestGroups:
    async def test_every_record_comes_once_and_a_new_member_goes_on_where_the_old_one_committed(
        self, settings: Settings, sender: KafkaSender
    ) -> None:
        await fill(sender, 60)
        first, second = Collected(), Collected()
        async with running(settings, first):
            await first.count(60)
        await fill(sender, 5)
        async with running(settings, second):
            await second.count(5)
            await asyncio.sleep(0.3)
        assert sorted(first.values) == sorted(b"%d" % n for n in range(60))
        assert sorted(second.values) == [b"0", b"1", b"2", b"3", b"4"]

    async def test_two_members_share_the_partitions_and_one_takes_over(
        self, settings: Settings, sender: KafkaSender
    ) -> None:
        both, first, second = Collected(), Collected(), Collected()
        async with running(settings, first, also=both) as one:
            async with running(settings, second, also=both) as two:
                await eventually(lambda: one.intakes[0].partitions and two.intakes[0].partitions)
                await eventually(lambda: len(one.intakes[0].partitions | two.intakes[0].partitions) == 3)
                await fill(sender, 90)
                await both.count(90)
                assert first.values
                assert second.values
            await eventually(lambda: len(one.intakes[0].partitions) == 3)
            await fill(sender, 30)
            await both.count(120)
        assert sorted(both.values) == sorted([*(b"%d" % n for n in range(90)), *(b"%d" % n for n in range(30))])


class TestProjections:
    async def test_it_reads_everything_and_then_follows(self, settings: Settings, sender: KafkaSender) -> None:
        await fill(sender, 50)
        seen: list[bytes] = []
        service = Service("router", settings, health=False)
        projection = service.project(REQUESTS, lambda record: seen.append(record.value or b""))
        empty = service.project(LIFECYCLE, lambda record: seen.append(b"?"))
        await service.start()
        try:
            assert projection.caught_up
            assert empty.caught_up
            assert sorted(seen) == sorted(b"%d" % n for n in range(50))
            await fill(sender, 3)
            await asyncio.wait_for(projection.wait_past(await service.highwater(REQUESTS)), 10)
            assert len(seen) == 53
            assert projection.positions == await service.highwater(REQUESTS)
        finally:
            await service.stop()

    async def test_start_positions(self, settings: Settings, sender: KafkaSender) -> None:
        await fill(sender, 20, partition=0)
        await fill(sender, 10, partition=1)
        end: list[Record] = []
        given: list[Record] = []
        service = Service("router", settings, health=False)
        service.project(REQUESTS, end.append, start=Start.END)
        service.project(REQUESTS, given.append, offsets=lambda: {0: 15, 1: AT_END})
        await service.start()
        try:
            assert end == []
            assert [(record.partition, record.offset) for record in given] == [(0, n) for n in range(15, 20)]
            await sender.send_raw(REQUESTS.name, b"new", key=b"k", partition=1)
            await eventually(lambda: end and len(given) == 6)
            assert (end[0].value, given[-1].value) == (b"new", b"new")
        finally:
            await service.stop()


class running:
    """A service that collects what comes from ``requests`` in one group."""

    def __init__(self, settings: Settings, into: Collected, also: Collected | None = None) -> None:
        self.service = Service("media", settings, health=False)

        async def handle(record: Record) -> None:
            into.add(record)
            if also is not None:
                also.add(record)

        self.service.consume(REQUESTS, handle, group="media")

    async def __aenter__(self) -> Service:
        await self.service.start()
        return self.service

    async def __aexit__(self, *_: object) -> None:
        await self.service.stop()
