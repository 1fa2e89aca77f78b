"""What a service says about itself, before it ever meets a broker."""

from __future__ import annotations

import asyncio

import pytest

from services.runtime.bus import Record
from services.runtime.projection import Start
from services.runtime.service import Phase, Service, StageStopped
from services.runtime.settings import Settings
from services.runtime.topics import REQUESTS, WORKERS
from services.runtime.vitals import READER_STALL_SECONDS, STALL_SECONDS
from tests.unit.runtime.making import record


def service() -> Service:
    return Service("media", Settings(instance="i1"), health=False)


async def ignore(_: Record) -> None:
    """Handle nothing."""


class TestReadiness:
    async def test_it_is_not_ready_before_it_runs_and_when_it_drains(self) -> None:
        subject = service()
        assert subject.unready() == ["registering"]
        subject.phase = Phase.RUNNING
        assert subject.ready
        subject.phase = Phase.STOPPING
        assert subject.unready() == ["stopping"]

    async def test_it_waits_for_projections_and_for_what_the_stage_says(self) -> None:
        subject = service()
        engine_up = False
        projection = subject.project(WORKERS, lambda _: None)
        subject.ready_when("engine does not answer", lambda: engine_up)
        subject.phase = Phase.RUNNING
        assert subject.unready() == ["projection of kvroute.workers.v1 is catching up", "engine does not answer"]
        projection.begin({0: 0})
        projection.note_highwater(0, 0)
        projection.settle()
        engine_up = True
        assert subject.unready() == []


class TestLiveness:
    async def test_records_in_hand_of_which_none_finishes_are_a_sickness(self, monkeypatch: pytest.MonkeyPatch) -> None:
        subject, forever, now = service(), asyncio.Event(), 1000.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

        async def handle(item: Record) -> None:
            if item.offset != 1:
                await forever.wait()

        subject.consume(REQUESTS, handle, group="media")
        intake = subject.intakes[0]
        intake.assigned(frozenset({0}))
        assert subject.sick() == []
        await intake.take([record(0)])
        assert subject.sick() == []
        now += STALL_SECONDS + 1
        assert subject.sick() == [f"1 records in hand and none finished for {STALL_SECONDS:.0f} s"]
        await intake.take([record(1)])
        for _ in range(5):
            await asyncio.sleep(0)
        assert intake.handled == 1
        assert subject.sick() == []
        await intake.drain(0)

    async def test_projections_that_are_not_read_are_a_sickness(self) -> None:
        subject = service()
        subject.project(WORKERS, lambda _: None)
        now = asyncio.get_running_loop().time()
        subject.reader.last_turn = now
        assert subject.sick() == []
        subject.reader.last_turn = now - READER_STALL_SECONDS - 5
        assert subject.sick()[0].startswith("projections were not read for 6")

    async def test_giving_up_is_a_sickness_and_an_error(self) -> None:
        subject = service()
        subject.raise_failure()
        subject.fail(RuntimeError("the membership broke"))
        subject.fail(RuntimeError("later"))
        await asyncio.wait_for(subject.wait_failed(), 10)
        assert subject.sick() == ["stage gives up: RuntimeError('the membership broke')"]
        with pytest.raises(StageStopped, match="stage media stopped: RuntimeError"):
            subject.raise_failure()

    async def test_the_stop_rule_is_told_with_its_setting(self) -> None:
        subject = Service("media", Settings(stop_after_failures=2), health=False)
        for _ in range(2):
            subject.stop_rule.failed("database away")
        await asyncio.wait_for(subject.wait_failed(), 10)
        with pytest.raises(StageStopped, match=r"after 2 failures.*KVROUTE_STOP_AFTER_FAILURES.*database away"):
            subject.raise_failure()

    async def test_being_asked_to_stop_is_no_failure(self) -> None:
        subject, asked = service(), asyncio.Event()
        asked.set()
        await asyncio.wait_for(subject.wait_failed(asked), 10)
        subject.raise_failure()


class TestRegistering:
    async def test_what_comes_too_late_is_an_error_and_not_forgotten(self) -> None:
        subject = service()
        subject.phase = Phase.STARTING
        with pytest.raises(RuntimeError, match=r"too late to project kvroute\.workers\.v1"):
            subject.project(WORKERS, lambda _: None)
        subject.consume_from("kvroute.work.w1.v1", ignore)
        subject.phase = Phase.RUNNING
        with pytest.raises(RuntimeError, match=r"stage media is running: it is too late to consume kvroute\.requests"):
            subject.consume(REQUESTS, ignore, group="media")
        with pytest.raises(RuntimeError, match="too late to read"):
            subject.consume_from("kvroute.work.w1.v1", ignore)

    async def test_following_control_is_a_projection_from_its_end(self) -> None:
        subject = service()
        subject.follow_control()
        assert [(p.topic.name, p.start) for p in subject.projections] == [("kvroute.control.v1", Start.END)]

    async def test_a_stage_that_never_started_can_be_stopped(self) -> None:
        subject = service()
        subject.consume(REQUESTS, ignore, group="media")
        subject.project(WORKERS, lambda _: None)
        stopped: list[str] = []

        async def broken() -> None:
            raise RuntimeError("hook")

        async def fine() -> None:
            stopped.append("fine")

        subject.on_stop(fine)
        subject.on_stop(broken)
        await subject.stop()
        assert stopped == ["fine"]
