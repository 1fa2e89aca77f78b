"""Sending a slot's stream: one after the other, coalesced, patient, and never with a hole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from schemas.kv_event import KvEvents
from services.kv.tier import Tier
from services.runtime.errors import Transient
from services.runtime.topics import KV_EVENTS
from services.worker import publisher as publisher_module
from services.worker.engines.events import Batch, Stored
from services.worker.publisher import SlotPublisher
from services.worker.sequence import Sequencer, SlotName
from services.worker.snapshot_schedule import SnapshotSchedule
from services.worker.translate import Translator
from tests.fakes import FakeClock, FakeSender


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.sender = FakeSender(self.clock)
        self.translator = Translator(16)
        self.publisher = SlotPublisher(
            Sequencer(SlotName("w1", 0, 5, "m", 16)), self.translator, self.sender, self.clock,
            SnapshotSchedule(600.0, lambda low, high: 1.0), complete=True,
        )  # fmt: skip
        self._next = 1

    def store(self, count: int = 1) -> None:
        for _ in range(count):
            self.translator.resident.add(self._next, None, Tier.DEVICE)
            self._next += 1
        self.publisher.changed()

    @property
    def records(self) -> list[KvEvents]:
        return self.sender.messages(KV_EVENTS.name, KvEvents)

    async def until_last(self, count: int) -> None:
        """Wait until the last record counts so many resident addresses."""

        def counted() -> bool:
            resident = self.records[-1].resident if self.records else None
            return resident is not None and resident[Tier.DEVICE].count == count

        await until(counted)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the condition is somebody else's state
        await asyncio.sleep(0.001)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    task = asyncio.create_task(made.publisher.run())
    yield made
    task.cancel()


async def test_it_begins_with_a_snapshot_of_what_is_there() -> None:
    bench = Bench()
    bench.store(3)
    await bench.publisher.step()
    (record,) = bench.records
    assert record.snapshot is not None
    assert sorted(record.snapshot.addresses) == [1, 2, 3]
    assert bench.publisher.snapshot is not None
    assert (bench.publisher.snapshot.offset, bench.publisher.last_seq) == (0, 0)
    await bench.publisher.step()
    assert len(bench.records) == 1


async def test_changes_of_one_moment_travel_together(bench: Bench) -> None:
    await bench.until_last(0)
    for _ in range(10):
        bench.store()
        await asyncio.sleep(0)
    await bench.until_last(10)
    assert len(bench.records) == 2


async def test_all_records_are_in_order_under_one_key(bench: Bench) -> None:
    await bench.until_last(0)
    for wave in range(1, 6):
        bench.store(1_000)
        await bench.until_last(wave * 1_000)
    bench.store(9_000)
    await bench.until_last(14_000)
    assert [record.seq for record in bench.records] == list(range(len(bench.records)))
    assert {sent.key for sent in bench.sender.sent} == {"w1"}


async def test_a_record_that_failed_is_sent_again_as_it_was(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "RETRY_SECONDS", (0.005, 0.005))
    await bench.until_last(0)
    bench.sender.fail_next(Transient("away"), times=3)
    bench.store()
    await until(lambda: bench.publisher.stalled)
    bench.store()
    await bench.until_last(2)
    assert [record.seq for record in bench.records] == [0, 1, 2]
    assert not bench.publisher.stalled


async def test_beyond_the_backlog_changes_are_dropped_for_a_snapshot(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "RETRY_SECONDS", (0.005, 0.005))
    monkeypatch.setattr(publisher_module, "BACKLOG_ADDRESSES", 50)
    await bench.until_last(0)
    bench.sender.fail_next(Transient("away"), times=3)
    bench.store()
    await until(lambda: bench.publisher.stalled)
    bench.store(60)
    assert bench.translator.resident.pending == 0
    await bench.until_last(61)
    assert bench.records[-1].snapshot is not None
    assert [record.seq for record in bench.records] == [0, 1, 2]


async def test_when_asked_it_gives_a_snapshot_at_most_every_ten_seconds(bench: Bench) -> None:
    await bench.until_last(0)
    bench.publisher.ask_snapshot()
    bench.store()
    await bench.until_last(1)
    assert bench.records[-1].snapshot is None
    bench.clock.advance(10)
    bench.publisher.ask_snapshot()
    await until(lambda: bench.records[-1].snapshot is not None)
    assert bench.publisher.snapshot is not None
    assert bench.publisher.snapshot.offset == 2


class TestSchedule:
    def schedule(self, draw: float = 1.2) -> SnapshotSchedule:
        made = SnapshotSchedule(600.0, lambda low, high: draw)
        assert made.due(0.0)
        made.taken(100.0)
        return made

    def test_it_comes_again_after_its_period_more_or_less(self) -> None:
        assert not self.schedule(1.2).due(819.0)
        assert self.schedule(1.2).due(820.0)
        assert self.schedule(0.8).due(580.0)

    def test_asking_twice_gives_one(self) -> None:
        schedule = self.schedule()
        schedule.ask(105.0)
        schedule.ask(109.0)
        assert not schedule.due(109.9)
        assert schedule.due(110.0)
        schedule.taken(110.0)
        assert not schedule.due(120.0)

    def test_asking_late_gives_it_at_once(self) -> None:
        schedule = self.schedule()
        schedule.ask(300.0)
        assert schedule.due(300.0)

    def test_our_own_need_waits_for_nothing(self) -> None:
        schedule = self.schedule()
        schedule.need(101.0)
        assert schedule.due(101.0)


async def test_a_hybrid_engine_is_called_so_in_changes_and_snapshots(bench: Bench) -> None:
    await bench.publisher.step()
    bench.translator.apply(Batch(0.0, [Stored([1], None, [], 16, group=1, reusable=False)]))
    bench.store()
    await bench.publisher.step()
    bench.publisher.ask_snapshot()
    bench.clock.advance(10)
    await bench.publisher.step()
    assert [(record.snapshot is not None, record.hybrid) for record in bench.records] == [
        (True, False), (False, True), (True, True),
    ]  # fmt: skip
