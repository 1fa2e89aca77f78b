"""Registrations and leases: who is there, who may be given work, whose life is over."""

from __future__ import annotations

import pytest

from schemas.decision import Position
from schemas.worker import WorkerState
from services.router.fleet import Fleet
from services.router.slots import Slot, SlotEpoch
from tests.unit.router.build import MODEL, heartbeat, worker

LIFE = SlotEpoch("w1", 0, 1)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(lease_seconds=6.0, heartbeat_seconds=2.0, started=100.0)


def at(partition: int, offset: int) -> Position:
    return Position(topic="kvroute.kv-events.v1", partition=partition, offset=offset)


def test_a_heartbeat_grants_a_lease_by_the_readers_clock(fleet: Fleet) -> None:
    fleet.register(worker())
    assert not fleet.leased(LIFE, 100.0)
    fleet.heartbeat(heartbeat(), 101.0)
    assert fleet.leased(LIFE, 106.9)
    assert not fleet.leased(LIFE, 107.0)


def test_a_heartbeat_from_before_the_start_tells_but_grants_nothing(fleet: Fleet) -> None:
    fleet.register(worker())
    fleet.heartbeat(heartbeat(waiting=3, snapshot=at(2, 50)), 101.0, fresh=False)
    assert not fleet.leased(LIFE, 101.0)
    state = fleet.state(LIFE)
    assert state is not None
    assert state.reported["waiting"] == 3
    assert fleet.snapshot_offsets() == {2: 50}


def test_a_heartbeat_counts_for_its_own_epoch_only(fleet: Fleet) -> None:
    fleet.register(worker(epoch=2))
    fleet.heartbeat(heartbeat(epoch=1), 101.0)
    assert not fleet.leased(SlotEpoch("w1", 0, 2), 101.0)
    fleet.heartbeat(heartbeat(epoch=2), 101.0)
    fleet.heartbeat(heartbeat(epoch=1), 102.0)
    assert fleet.leased(SlotEpoch("w1", 0, 2), 103.0)


def test_a_heartbeat_may_come_before_its_registration(fleet: Fleet) -> None:
    fleet.heartbeat(heartbeat(), 101.0)
    fleet.register(worker())
    assert fleet.leased(LIFE, 102.0)


def test_a_higher_epoch_ends_the_lower_one_on_every_rank(fleet: Fleet) -> None:
    fleet.register(worker(dp_size=2))
    assert fleet.register(worker(epoch=2)) == [LIFE, SlotEpoch("w1", 1, 1)]
    assert fleet.ended(LIFE, 101.0)
    assert [life for life, _ in fleet.lives()] == [SlotEpoch("w1", 0, 2)]


def test_a_lower_epoch_changes_nothing(fleet: Fleet) -> None:
    fleet.register(worker(epoch=2))
    assert fleet.register(worker(epoch=1, state=WorkerState.RETIRED)) == []
    assert fleet.workers["w1"].epoch == 2


def test_retiring_and_deleting_end_a_life(fleet: Fleet) -> None:
    fleet.register(worker())
    assert fleet.register(worker(state=WorkerState.RETIRED)) == [LIFE]
    assert fleet.ended(LIFE, 101.0)
    assert list(fleet.lives()) == []
    fleet.register(worker("w2"))
    assert fleet.forget("w2") == [SlotEpoch("w2", 0, 1)]
    assert fleet.forget("w2") == []


def test_draining_is_no_end(fleet: Fleet) -> None:
    fleet.register(worker())
    fleet.heartbeat(heartbeat(), 101.0)
    assert fleet.register(worker(state=WorkerState.DRAINING)) == []
    assert not fleet.ended(LIFE, 102.0)


def test_silence_for_a_lease_ends_a_life_but_not_before_one_lease_after_the_start(fleet: Fleet) -> None:
    fleet.register(worker())
    assert not fleet.ended(LIFE, 105.9)
    assert fleet.ended(LIFE, 106.0)
    fleet.heartbeat(heartbeat(), 107.0)
    assert not fleet.ended(LIFE, 112.9)
    assert fleet.ended(LIFE, 113.0)


def test_listening_anew_gives_everybody_a_lease(fleet: Fleet) -> None:
    fleet.register(worker())
    fleet.begin(110.0)
    assert not fleet.ended(LIFE, 115.9)
    assert fleet.ended(LIFE, 116.0)


def test_quiet_is_when_nobody_at_all_is_heard(fleet: Fleet) -> None:
    assert not fleet.quiet(200.0)
    fleet.register(worker())
    fleet.heartbeat(heartbeat(), 150.0)
    assert not fleet.quiet(153.0)
    assert fleet.quiet(153.1)


def test_settled_when_all_were_heard_or_had_the_time(fleet: Fleet) -> None:
    assert fleet.settled(100.0)
    fleet.register(worker("w1"))
    fleet.register(worker("w2", state=WorkerState.DRAINING))
    assert not fleet.settled(101.0)
    fleet.heartbeat(heartbeat("w1"), 102.0)
    assert fleet.settled(102.0)
    fleet.register(worker("w3"))
    assert not fleet.settled(102.9)
    assert fleet.settled(103.0)


def test_kv_events_are_read_from_the_lowest_snapshot_of_the_living(fleet: Fleet) -> None:
    for name, epoch, place in (("w1", 1, at(0, 50)), ("w2", 1, at(0, 20)), ("w3", 1, at(5, 9)), ("old", 1, at(7, 1))):
        fleet.register(worker(name, epoch=epoch))
        fleet.heartbeat(heartbeat(name, epoch=epoch, snapshot=place), 101.0, fresh=False)
    fleet.register(worker("old", epoch=2))
    assert fleet.snapshot_offsets() == {0: 20, 5: 9}


def test_slots_that_were_silent_for_long_are_overdue(fleet: Fleet) -> None:
    fleet.heartbeat(heartbeat("w1"), 101.0)
    fleet.heartbeat(heartbeat("w2"), 101.0, fresh=False)
    assert fleet.overdue(150.0, 60.0) == []
    assert fleet.overdue(162.0, 60.0) == [Slot("w2", 0)]


def test_workers_are_found_by_model(fleet: Fleet) -> None:
    fleet.register(worker("w1", dp_size=2))
    fleet.register(worker("w2").model_copy(update={"model": "other"}))
    assert [member.life for member in fleet.members(MODEL)] == [SlotEpoch("w1", 0, 1), SlotEpoch("w1", 1, 1)]
