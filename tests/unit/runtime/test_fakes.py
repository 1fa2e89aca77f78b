"""The harness keeps the service's promises, as far as tests of stages rely on them."""

from __future__ import annotations

import asyncio

import pytest

from schemas.control import Control, ControlKind
from services.runtime.bus import Record
from services.runtime.errors import BadRecord, Transient
from services.runtime.topics import CONTROL, REQUESTS, RESPONSES, WORKERS
from tests.fakes import FakeSender, Harness

CANCEL = Control(kind=ControlKind.CANCEL, at_ms=0, request_id="r1")


async def test_a_consumer_gets_what_is_pushed_and_sends_can_be_inspected() -> None:
    harness = Harness("media")

    async def handle(record: Record) -> None:
        await harness.sender.send(CONTROL.name, CANCEL, key=CANCEL.key)

    harness.consume(REQUESTS, handle, group="media")
    record = await harness.push(REQUESTS, b"{}", key="k")
    assert (record.partition, record.offset) == (0, 0)
    assert harness.sender.messages(CONTROL.name, Control) == [CANCEL]
    assert harness.sender.sent[0].headers["schema"] == "control.v1"
    assert harness.groups == {"kvroute.requests.v1": "media"}


async def test_bad_records_become_dead_letters_other_errors_come_out() -> None:
    harness = Harness()

    async def handle(record: Record) -> None:
        raise BadRecord("not_json", "x") if record.value == b"bad" else RuntimeError("bug")

    harness.consume(REQUESTS, handle, group="g")
    await harness.push(REQUESTS, b"bad", key="k")
    assert [(letter.code, letter.record.value) for letter in harness.dead_letters] == [("not_json", b"bad")]
    with pytest.raises(RuntimeError, match="bug"):
        await harness.push(REQUESTS, b"{}", key="k")


async def test_projections_see_pushes_and_own_sends() -> None:
    harness = Harness()
    seen: list[int] = []
    projection = harness.project(CONTROL, lambda record: seen.append(record.offset))
    assert projection.caught_up
    await harness.push(CONTROL, CANCEL)
    position = await harness.sender.send(CONTROL.name, CANCEL, key="/r1")
    assert seen == [0, 1]
    assert await harness.highwater(CONTROL) == {0: 2}
    await projection.wait_past({0: 2})
    assert (await harness.read_at(position)) is not None


async def test_own_sends_can_be_held_back() -> None:
    harness = Harness(loopback=False)
    seen: list[int] = []
    harness.project(CONTROL, lambda record: seen.append(record.offset))
    await harness.sender.send(CONTROL.name, CANCEL, key="/r1")
    assert seen == []
    harness.deliver()
    assert seen == [0]


async def test_records_a_projection_cannot_apply_are_skipped_and_kept_to_look_at() -> None:
    harness = Harness()
    harness.follow_control()
    await harness.push(CONTROL, b"rubbish", key="k")
    await harness.push(CONTROL, CANCEL)
    assert len(harness.skipped) == 1
    assert harness.cancellations.is_cancelled("/r1")


async def test_jobs_checks_gates_topics_and_hooks() -> None:
    harness = Harness()
    log: list[str] = []

    async def job() -> None:
        log.append("job")

    async def gate(partitions: frozenset[int]) -> None:
        log.append(f"gate {sorted(partitions)}")

    async def started() -> None:
        log.append("started")

    async def handle(_: Record) -> None: ...

    harness.every(5, job, name="beat")
    harness.consume(REQUESTS, handle, group="g", on_assigned=gate)
    harness.on_start(started)
    harness.ready_when("engine", lambda: bool(log))
    ready_before = harness.ready
    await harness.start()
    await harness.assign(REQUESTS, {0, 2})
    await harness.tick("beat")
    await harness.ensure_topic("kvroute.responses.a.v1", RESPONSES)
    task = harness.spawn(asyncio.Event().wait(), name="forever")
    await harness.stop()
    assert log == ["started", "gate [0, 2]", "job"]
    assert (ready_before, harness.ready) == (False, True)
    assert harness.topics_made == ["kvroute.responses.a.v1"]
    assert task.cancelled()


async def test_the_sender_fails_when_told() -> None:
    sender = FakeSender()
    sender.fail_next(Transient("away"), topic=WORKERS.name)
    await sender.send(CONTROL.name, CANCEL, key="/r1")
    with pytest.raises(Transient):
        await sender.send(WORKERS.name, None, key="w1")
    await sender.send(WORKERS.name, None, key="w1")
    assert [sent.record.value for sent in sender.of(WORKERS.name)] == [None]


async def test_the_clock_turns_by_hand() -> None:
    harness = Harness()
    wall, steady = harness.clock.now_ms(), harness.clock.monotonic()
    harness.clock.advance(1.5)
    harness.clock.turn_back(60)
    assert harness.clock.now_ms() - wall == -58_500
    assert harness.clock.monotonic() - steady == 1.5
