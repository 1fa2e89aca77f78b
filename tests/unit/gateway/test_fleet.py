"""Whose life is over."""

import pytest

from schemas.worker import Heartbeat, Worker, WorkerState
from services.gateway.binding import Source
from services.gateway.fleet import QUIET_LEASES, Fleet

W1 = Source(1, "w1", 5)
LEASE = 6.0


def worker(worker_id: str = "w1", epoch: int = 5, state: WorkerState = WorkerState.LIVE) -> Worker:
    return Worker(worker_id=worker_id, epoch=epoch, model="m", block_size=16, at_ms=1, state=state)


def beat(worker_id: str = "w1", epoch: int = 5) -> Heartbeat:
    return Heartbeat(worker_id=worker_id, epoch=epoch, at_ms=0)


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet(LEASE)
    fleet.register(worker())
    fleet.heartbeat(beat(), 100.0)
    return fleet


def ended(fleet: Fleet, now: float, last_piece: float = 100.0) -> bool:
    return fleet.ended(W1, last_piece, now)


def test_heard_within_a_lease(fleet: Fleet) -> None:
    fleet.heartbeat(beat("w2"), 106.0)
    assert not ended(fleet, 106.0)
    assert ended(fleet, 106.1)


def test_a_piece_is_a_sign_of_life(fleet: Fleet) -> None:
    fleet.heartbeat(beat("w2"), 110.0)
    assert not ended(fleet, 110.0, last_piece=105.0)


def test_while_nobody_is_heard_it_may_be_us(fleet: Fleet) -> None:
    assert not ended(fleet, 100 + LEASE * QUIET_LEASES)
    assert ended(fleet, 100.1 + LEASE * QUIET_LEASES)


def test_a_newer_epoch_ends_the_older(fleet: Fleet) -> None:
    fleet.heartbeat(beat(epoch=6), 101.0)
    assert ended(fleet, 101.0)
    fleet.heartbeat(beat(epoch=5), 102.0)
    assert ended(fleet, 102.0)
    assert not fleet.ended(Source(1, "w1", 6), 101.0, 102.0)


@pytest.mark.parametrize(("state", "over"), [(WorkerState.DRAINING, False), (WorkerState.RETIRED, True)])
def test_a_draining_worker_finishes_what_it_has(fleet: Fleet, state: WorkerState, over: bool) -> None:
    fleet.register(worker(state=state))
    assert ended(fleet, 101.0) is over


def test_the_retirement_of_an_earlier_life_is_not_this_ones(fleet: Fleet) -> None:
    fleet.register(worker(epoch=4, state=WorkerState.RETIRED))
    assert not ended(fleet, 101.0)


def test_a_stage_has_no_life_to_end(fleet: Fleet) -> None:
    assert not fleet.ended(Source(0, None, None), 0.0, 1e9)
