"""The consume discipline without a broker: order per key, bounds, gates, commits, revocation."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from services.runtime.bus import Record
from services.runtime.errors import BadRecord
from services.runtime.intake import Intake
from services.runtime.stop_rule import StopRule
from tests.unit.runtime.making import Graveyard, record, treatment
from tests.waiting import eventually


class Bench:
    """An intake whose records are finished by hand."""

    def __init__(self, concurrency: int = 4, *, gate: bool = False, partitions: set[int] | None = None) -> None:
        self.started: list[Record] = []
        self.finished: list[Record] = []
        self.running = 0
        self.most_running = 0
        self.commits: list[dict[int, int]] = []
        self.commit_error: Exception | None = None
        self.commit_failures: list[Exception] = []
        self.gates: list[frozenset[int]] = []
        self.open = asyncio.Event()
        self.lost: list[frozenset[int]] = []
        self.graveyard = Graveyard()
        self.bad: set[int] = set()
        self._doors: dict[tuple[int, int], asyncio.Event] = defaultdict(asyncio.Event)
        self.intake = Intake(
            treatment(self._handle, self.graveyard, rule=StopRule(20)),
            commit=self._commit,
            concurrency=concurrency,
            on_commit_failed=self.commit_failures.append,
            gate=self._gate if gate else None,
            on_revoked=self._revoked,
        )
        self.intake.assigned(frozenset(partitions or {0}))

    async def _handle(self, item: Record) -> None:
        self.started.append(item)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self._doors[item.partition, item.offset].wait()
            if item.offset in self.bad:
                raise BadRecord("bad", "bad")
            self.finished.append(item)
        finally:
            self.running -= 1

    async def _commit(self, offsets: dict[int, int]) -> None:
        if self.commit_error is not None:
            raise self.commit_error
        self.commits.append(offsets)

    async def _gate(self, partitions: frozenset[int]) -> None:
        self.gates.append(partitions)
        await self.open.wait()

    async def _revoked(self, partitions: frozenset[int]) -> None:
        self.lost.append(partitions)

    async def finish(self, *offsets: int, partition: int = 0) -> None:
        for offset in offsets:
            self._doors[partition, offset].set()
        await settle()

    @property
    def offsets(self) -> list[int]:
        return [item.offset for item in self.started]


async def settle() -> None:
    """Let everything that can run, run."""
    for _ in range(20):
        await asyncio.sleep(0)


class TestTaking:
    async def test_records_with_different_keys_run_side_by_side(self) -> None:
        bench = Bench()
        await bench.intake.take([record(n) for n in range(3)])
        await settle()
        assert bench.offsets == [0, 1, 2]

    async def test_records_with_the_same_key_run_one_after_another(self) -> None:
        bench = Bench()
        await bench.intake.take([record(0, key="a"), record(1, key="a"), record(2, key="b"), record(3, key="a")])
        await settle()
        assert bench.offsets == [0, 2]
        await bench.finish(0)
        assert bench.offsets == [0, 2, 1]
        await bench.finish(1)
        assert bench.offsets == [0, 2, 1, 3]

    async def test_a_dead_letter_lets_the_next_of_its_key_run(self) -> None:
        bench = Bench()
        bench.bad = {0}
        await bench.intake.take([record(0, key="a"), record(1, key="a")])
        await bench.finish(0)
        assert bench.graveyard.codes == ["bad"]
        assert bench.offsets == [0, 1]

    async def test_records_without_a_key_are_in_no_order(self) -> None:
        bench = Bench()
        keyless = [Record("t", 0, n, 0, None, b"") for n in range(3)]
        await bench.intake.take(keyless)
        await settle()
        assert bench.offsets == [0, 1, 2]

    async def test_no_more_run_than_the_bound_allows(self) -> None:
        bench = Bench(concurrency=2)
        await bench.intake.take([record(n) for n in range(8)])
        await settle()
        assert bench.offsets == [0, 1]
        for n in range(8):
            await bench.finish(n)
        assert bench.most_running == 2
        assert len(bench.finished) == 8

    async def test_at_the_bound_taking_waits(self) -> None:
        bench = Bench(concurrency=1)
        bound = bench.intake.most_held
        taking = asyncio.create_task(bench.intake.take([record(n) for n in range(bound + 5)]))
        await settle()
        assert not taking.done()
        was_paused = bench.intake.paused
        assert bench.intake.in_flight == bound
        await bench.finish(*range(bound + 5))
        await taking
        await eventually(lambda: bench.intake.handled == bound + 5)
        assert (was_paused, bench.intake.paused) == (True, False)

    async def test_one_slow_record_holds_nobody_else(self) -> None:
        bench = Bench(concurrency=4)
        await bench.intake.take([record(0)])
        for n in range(1, 200):
            taking = asyncio.create_task(bench.intake.take([record(n)]))
            await bench.finish(n)
            await taking
        await settle()
        assert len(bench.finished) == 199
        await bench.intake.commit()
        assert bench.commits == [{0: 0}]

    async def test_records_of_partitions_that_are_not_ours_are_left(self) -> None:
        bench = Bench()
        await bench.intake.take([record(0, partition=7), record(1)])
        await settle()
        assert bench.offsets == [1]


class TestCommitting:
    async def test_the_lowest_unfinished_offset_is_committed_and_only_when_it_moved(self) -> None:
        bench = Bench(partitions={0, 1})
        await bench.intake.take([record(5), record(6), record(0, partition=1)])
        await bench.finish(6)
        await bench.finish(0, partition=1)
        await bench.intake.commit()
        await bench.intake.commit()
        assert bench.commits == [{0: 5, 1: 1}]
        await bench.finish(5)
        await bench.intake.commit()
        assert bench.commits[-1] == {0: 7}

    async def test_a_failed_commit_is_counted_and_repeated(self) -> None:
        bench = Bench()
        await bench.intake.take([record(0)])
        await bench.finish(0)
        bench.commit_error = RuntimeError("coordinator away")
        await bench.intake.commit()
        assert [str(error) for error in bench.commit_failures] == ["coordinator away"]
        bench.commit_error = None
        await bench.intake.commit()
        assert bench.commits == [{0: 1}]


class TestGate:
    async def test_records_wait_until_the_gate_opens(self) -> None:
        bench = Bench(gate=True, partitions={0, 1})
        taking = asyncio.create_task(bench.intake.take([record(0)]))
        await settle()
        assert bench.gates == [frozenset({0, 1})]
        assert bench.started == []
        bench.open.set()
        await taking
        await settle()
        assert bench.offsets == [0]

    async def test_a_revocation_ends_the_waiting(self) -> None:
        bench = Bench(gate=True)
        taking = asyncio.create_task(bench.intake.take([record(0)]))
        await settle()
        await bench.intake.revoked(frozenset({0}), 5)
        await taking
        bench.open.set()
        await settle()
        assert bench.started == []
        assert bench.intake.in_flight == 0

    async def test_a_gate_that_fails_is_tried_again(self) -> None:
        calls = 0

        async def gate(_: frozenset[int]) -> None:
            nonlocal calls
            calls += 1
            if calls < 3:
                raise RuntimeError("projection away")

        seen: list[int] = []

        async def handle(item: Record) -> None:
            seen.append(item.offset)

        intake = Intake(treatment(handle), commit=None, concurrency=1, on_commit_failed=lambda _: None, gate=gate)
        intake.assigned(frozenset({0}))
        await intake.take([record(0)])
        await settle()
        assert (calls, seen) == (3, [0])

    async def test_a_gate_that_never_works_stays_shut_when_the_stage_gives_up(self) -> None:
        async def gate(_: frozenset[int]) -> None:
            raise RuntimeError("projection away")

        rule = StopRule(3)
        seen: list[int] = []

        async def handle(item: Record) -> None:
            seen.append(item.offset)

        intake = Intake(
            treatment(handle, rule=rule), commit=None, concurrency=1, on_commit_failed=lambda _: None, gate=gate
        )
        intake.assigned(frozenset({0}))
        taking = asyncio.create_task(intake.take([record(0)]))
        await eventually(rule.tripped.is_set)
        await settle()
        assert seen == []
        await intake.drain(0)
        await taking
        assert seen == []


class TestLosingPartitions:
    async def test_what_finishes_in_time_is_committed_the_rest_is_dropped(self) -> None:
        bench = Bench()
        await bench.intake.take([record(n) for n in range(6)])
        await settle()
        assert bench.offsets == [0, 1, 2, 3]
        leaving = asyncio.create_task(bench.intake.revoked(frozenset({0}), 0.05))
        await settle()
        await bench.finish(0, 1)
        await leaving
        assert bench.commits == [{0: 2}]
        assert bench.offsets == [0, 1, 2, 3]
        assert bench.running == 0
        assert bench.intake.in_flight == 0
        assert bench.intake.partitions == frozenset()
        assert bench.lost == [frozenset({0})]

    async def test_the_wait_ends_as_soon_as_all_have_finished(self) -> None:
        bench = Bench()
        await bench.intake.take([record(0)])
        await settle()
        leaving = asyncio.create_task(bench.intake.revoked(frozenset({0}), 3600))
        await settle()
        await bench.finish(0)
        await asyncio.wait_for(leaving, 10)
        assert bench.commits == [{0: 1}]

    async def test_other_partitions_go_on(self) -> None:
        bench = Bench(concurrency=2, partitions={0, 1})
        await bench.intake.take([record(0), record(1), record(0, partition=1), record(1, partition=1)])
        await settle()
        await bench.intake.revoked(frozenset({0}), 0)
        await bench.finish(0, 1, partition=1)
        assert [(item.partition, item.offset) for item in bench.finished] == [(1, 0), (1, 1)]
        await bench.intake.commit()
        assert bench.commits[-1] == {1: 2}

    async def test_a_partition_that_comes_back_starts_from_what_the_broker_sends(self) -> None:
        bench = Bench()
        await bench.intake.take([record(5), record(6)])
        await settle()
        await bench.intake.revoked(frozenset({0}), 0)
        bench.intake.assigned(frozenset({0}))
        await bench.intake.take([record(5), record(6)])
        await bench.finish(5, 6)
        await bench.intake.commit()
        assert bench.commits == [{0: 5}, {0: 7}]

    async def test_a_batch_that_was_waiting_at_the_bound_is_not_taken_after_the_partition_left(self) -> None:
        bench = Bench(concurrency=1)
        many = [record(n) for n in range(bench.intake.most_held + 3)]
        taking = asyncio.create_task(bench.intake.take(many))
        await settle()
        await bench.intake.revoked(frozenset({0}), 0)
        bench.intake.assigned(frozenset({0}))
        await taking
        await settle()
        assert bench.intake.in_flight == 0
        assert bench.offsets == [0]

    async def test_drain_finishes_what_runs_and_takes_no_more(self) -> None:
        bench = Bench()
        await bench.intake.take([record(0)])
        await settle()
        draining = asyncio.create_task(bench.intake.drain(3600))
        await settle()
        await bench.intake.take([record(1)])
        await bench.finish(0)
        await asyncio.wait_for(draining, 10)
        assert bench.offsets == [0]
        assert bench.commits == [{0: 1}]


async def test_it_knows_its_oldest_record_and_its_positions() -> None:
    bench = Bench(partitions={0, 1})
    assert (bench.intake.oldest_ms, bench.intake.positions) == (None, {})
    await bench.intake.take([record(3), record(4), record(2, partition=1)])
    await settle()
    assert bench.intake.oldest_ms == 1_000_002
    assert bench.intake.positions == {0: 3, 1: 2}
    await bench.finish(2, partition=1)
    assert bench.intake.oldest_ms == 1_000_003
    assert bench.intake.positions == {0: 3, 1: 3}
