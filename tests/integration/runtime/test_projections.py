"""One reader feeds the projections of several services."""

from __future__ import annotations

import asyncio
import time

from services.runtime.bus import Record
from services.runtime.metrics import PROJECTION_ERRORS
from services.runtime.projection import Projection, Start
from services.runtime.projection_reader import ProjectionReader
from services.runtime.sender import KafkaSender
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import CONTROL, HEARTBEATS, KV_EVENTS, WORKERS
from tests.waiting import eventually


async def send(sender: KafkaSender, topic: str, *values: bytes, partition: int = 0) -> None:
    for value in values:
        await sender.send_raw(topic, value, key=b"w1", partition=partition)


async def test_two_services_share_a_reader_and_the_second_comes_and_goes(
    settings: Settings, sender: KafkaSender
) -> None:
    await send(sender, WORKERS.name, b"a", b"b")
    reader = ProjectionReader(settings)
    first, second = Service("router", settings, projections=reader), Service("layout", settings, projections=reader)
    one: list[bytes | None] = []
    two: list[bytes | None] = []
    beats: list[bytes | None] = []
    first.project(WORKERS, lambda record: one.append(record.value))
    second.project(WORKERS, lambda record: two.append(record.value))
    second.project(HEARTBEATS, lambda record: beats.append(record.value))
    await first.start()
    assert one == [b"a", b"b"]
    await send(sender, WORKERS.name, b"c")
    await eventually(lambda: len(one) == 3)
    await second.start()
    assert two == [b"a", b"b", b"c"]
    await send(sender, WORKERS.name, b"d")
    await send(sender, HEARTBEATS.name, b"beat")
    await eventually(lambda: len(one) == 4 and len(two) == 4 and beats)
    await second.stop()
    await send(sender, WORKERS.name, b"e")
    await eventually(lambda: len(one) == 5)
    await first.stop()
    assert one == [b"a", b"b", b"c", b"d", b"e"]
    assert two == one[:4]


async def test_a_record_that_cannot_be_applied_is_counted_and_skipped(settings: Settings, sender: KafkaSender) -> None:
    errors = PROJECTION_ERRORS.labels("gateway", WORKERS.name)
    before = errors._value.get()
    seen: list[bytes | None] = []

    def apply(record: Record) -> None:
        if record.value == b"rubbish":
            raise ValueError("expected JSON")
        seen.append(record.value)

    await send(sender, WORKERS.name, b"a", b"rubbish", b"b")
    service = Service("gateway", settings)
    projection = service.project(WORKERS, apply)
    await service.start()
    assert seen == [b"a", b"b"]
    assert projection.positions == {0: 3}
    assert errors._value.get() == before + 1
    await service.stop()


async def test_later_projections_start_from_what_the_first_ones_found(settings: Settings, sender: KafkaSender) -> None:
    await send(sender, KV_EVENTS.name, b"old", b"snapshot", b"change", partition=2)
    await send(sender, HEARTBEATS.name, b"1")
    service = Service("router", settings)
    snapshots: dict[int, int] = {}
    seen: list[bytes | None] = []

    def heartbeat(record: Record) -> None:
        snapshots[2] = int(record.value or b"")

    service.project(KV_EVENTS, lambda record: seen.append(record.value), offsets=lambda: snapshots)
    service.project(HEARTBEATS, heartbeat)
    await service.start()
    assert seen == [b"snapshot", b"change"]
    await service.stop()


async def test_a_start_by_time_misses_nothing_since_then(settings: Settings, sender: KafkaSender) -> None:
    await send(sender, KV_EVENTS.name, b"old", b"older", partition=0)
    await asyncio.sleep(0.05)
    since = int(time.time() * 1000)
    await asyncio.sleep(0.05)
    await send(sender, KV_EVENTS.name, b"new", partition=0)
    await send(sender, KV_EVENTS.name, b"new", partition=1)
    seen: list[bytes | None] = []
    service = Service("router", settings)
    service.project(KV_EVENTS, lambda record: seen.append(record.value), start=Start.SINCE, since_ms=since)
    await service.start()
    await service.stop()
    # The embedded broker can't look up times: there everything is read.
    expected = [b"new", b"new"] if settings.kafka_profile == "kafka" else [b"new", b"new", b"old", b"older"]
    assert sorted(value or b"" for value in seen) == expected


async def test_orders_on_control_reach_the_cancellations_from_the_start_on(
    settings: Settings, sender: KafkaSender
) -> None:
    from schemas.control import Control, ControlKind

    def cancel(request_id: str) -> Control:
        return Control(kind=ControlKind.CANCEL, at_ms=0, request_id=request_id)

    await sender.send(CONTROL.name, cancel("before"), key="/before")
    service = Service("media", settings)
    service.follow_control()
    await service.start()
    await sender.send_raw(CONTROL.name, b"rubbish", key=b"k")
    await sender.send(CONTROL.name, cancel("after"), key="/after")
    await eventually(lambda: service.cancellations.is_cancelled("/after"))
    assert not service.cancellations.is_cancelled("/before")
    await service.stop()


async def test_a_projection_can_be_taken_off_twice(settings: Settings, sender: KafkaSender) -> None:
    seen: list[int] = []
    projection = Projection(WORKERS, lambda record: seen.append(record.offset))
    await send(sender, WORKERS.name, b"a")
    reader = ProjectionReader(settings)
    await reader.add([projection])
    await projection.wait_caught_up()
    await reader.remove([projection])
    await reader.remove([projection])
    assert seen == [0]
