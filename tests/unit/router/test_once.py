"""A decision is made once, whoever owns the partition, and whoever loses gives way."""

from __future__ import annotations

import asyncio

from schemas.control import ControlKind
from schemas.lifecycle import LifecycleEvent as Event
from services.runtime.bus import Record
from services.runtime.topics import DECISIONS, EXPANDED, HEARTBEATS, WORKERS
from tests.unit.router import build as make
from tests.unit.router.build import NOW_MS, worker
from tests.unit.router.stage import REPLY, Stage, start


async def test_a_record_that_comes_again_sends_the_same_work_and_decides_nothing(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    record = await stage.ask()
    first = stage.decisions()[0]
    await stage.hold("w1" if first.worker_id == "w2" else "w2", blocks=8)
    await stage.router.handle(record)
    assert len(stage.decisions()) == 1
    assert stage.all_work() == [(first.worker_id, 1)] * 2


async def test_the_same_request_twice_is_one_request(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.ask()
    await stage.ask()
    assert len(stage.decisions()) == 1
    await stage.tell(Event.FINISHED)
    await stage.ask()
    assert len(stage.decisions()) == 1
    assert len(stage.all_work()) == 2


async def test_after_a_takeover_the_former_owners_decision_stands(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.hold("w1", blocks=8)
    theirs = make.decision(make.expanded(reply_to=REPLY), make.slot("w2"), router="router-0")
    await stage.harness.push(DECISIONS, theirs)
    await stage.ask()
    assert stage.decisions() == []
    assert stage.all_work() == [("w2", 1)]


async def test_nothing_is_routed_before_decisions_are_read_to_their_end_at_the_assignment() -> None:
    stage = start(loopback=False)
    await stage.meet("w1", "w2")
    theirs = make.decision(make.expanded(reply_to=REPLY), make.slot("w2"), router="router-0")
    await stage.harness.sender.send(DECISIONS.name, theirs, key=theirs.key)
    gate = asyncio.create_task(stage.harness.assign(EXPANDED, {0}))
    await asyncio.sleep(0.01)
    assert not gate.done()
    stage.harness.deliver()
    await asyncio.wait_for(gate, 5)
    await stage.ask()
    assert stage.all_work() == [("w2", 1)]


async def test_the_gate_waits_until_workers_had_the_time_to_be_heard() -> None:
    stage = start()
    await stage.harness.push(WORKERS, worker("w1"))
    gate = asyncio.create_task(stage.harness.assign(EXPANDED, {0}))
    await asyncio.sleep(0.06)
    assert not gate.done()
    assert not stage.harness.ready
    await stage.beat("w1")
    await asyncio.wait_for(gate, 5)
    assert stage.harness.ready


async def test_heartbeats_from_before_the_start_grant_no_lease() -> None:
    stage = start()
    beats = next(p for p in stage.harness.projections if p.topic is HEARTBEATS)
    beats._caught_up.clear()
    beats.targets = {0: 1}
    await stage.meet("w1")
    assert beats.caught_up
    assert not stage.harness.ready
    await stage.beat("w1")
    assert stage.harness.ready


async def test_a_decision_that_lost_is_cancelled_at_its_worker_and_its_work_not_sent() -> None:
    stage = start(loopback=False)
    await stage.harness.assign(EXPANDED, {0})
    await stage.meet("w1", "w2")
    await stage.hold("w1", blocks=8)
    theirs = make.decision(make.expanded(reply_to=REPLY), make.slot("w2"), router="router-0")
    first = stage.harness.sender.record(DECISIONS.name, theirs.to_bytes(), b"/r1", None)
    await stage.ask()
    assert stage.decisions()[0].worker_id == "w1"
    stage.decisions_projection().take(first)
    stage.harness.deliver()
    await stage.settle()
    order = stage.orders()[0]
    assert (order.kind, order.request_id, order.attempt, order.worker_id) == (ControlKind.CANCEL, "r1", 1, "w1")
    assert stage.router.state.requests.get("/r1").standing.life.worker_id == "w2"
    state = stage.router.state
    assert [state.ledger.load(make.slot(name).life).requests for name in ("w1", "w2")] == [0, 1]


async def test_a_decision_that_lost_before_its_ack_sends_no_work() -> None:
    stage = start(loopback=False)
    await stage.harness.assign(EXPANDED, {0})
    await stage.meet("w1", "w2")
    await stage.hold("w1", blocks=8)
    theirs = make.decision(make.expanded(reply_to=REPLY), make.slot("w2"), router="router-0")

    def overtake(record: Record) -> None:
        if record.topic == DECISIONS.name:
            stage.decisions_projection().apply(Record(DECISIONS.name, 0, 0, NOW_MS, b"/r1", theirs.to_bytes()))

    stage.harness.sender.on_sent = overtake
    await stage.ask()
    assert stage.all_work() == []


async def test_who_loses_sends_the_work_of_the_decision_that_was_first() -> None:
    """Its maker may have died between decision and work, and the record is committed by us."""
    stage = start(loopback=False)
    await stage.harness.assign(EXPANDED, {0})
    await stage.meet("w1", "w2")
    await stage.hold("w1", blocks=8)
    theirs = make.decision(make.expanded(reply_to=REPLY), make.slot("w2"), router="router-0")
    record = await stage.ask_without_owner()
    theirs = theirs.model_copy(update={"expanded": record.position})
    first = stage.harness.sender.record(DECISIONS.name, theirs.to_bytes(), b"/r1", None)
    await stage.router.handle(record)
    assert stage.all_work() == [("w1", 1)]
    stage.decisions_projection().take(first)
    stage.harness.deliver()
    await stage.settle()
    assert stage.all_work() == [("w1", 1), ("w2", 1)]


async def test_a_losers_end_does_not_free_the_load_of_the_worker_that_has_the_request(stage: Stage) -> None:
    await stage.meet("w1", "w2")
    await stage.harness.push(DECISIONS, make.decision(make.expanded(), make.slot("w1"), router="router-0"))
    await stage.tell(Event.FAILED, worker_id="w2", epoch=1, retryable=True)
    assert stage.router.state.ledger.load(make.slot("w1").life).requests == 1
    assert stage.decisions() == []
