"""What one router knows stays in step: decisions, facts and registrations change fleet, index and ledger together."""

from __future__ import annotations

import pytest

from schemas.lifecycle import LifecycleEvent as Event
from services.router.predicted import LINGER_MS
from services.router.requests import Verdict
from services.router.slots import SlotEpoch
from services.router.state import FORGET_SECONDS, RouterState
from tests.unit.router.build import MODEL, NOW_MS, chain, decision, expanded, fact, heartbeat, image, slot, worker

W1, W2 = SlotEpoch("w1", 0, 1), SlotEpoch("w2", 0, 1)
ON_W1 = decision(expanded(), slot("w1"))
ON_W2 = decision(expanded(), slot("w2"))


@pytest.fixture
def state() -> RouterState:
    state = RouterState(lease_seconds=6.0, heartbeat_seconds=2.0, started=100.0, batch=4, random=lambda: 0.5)
    for name in ("w1", "w2"):
        state.registered(name, worker(name, concurrency=10), NOW_MS)
        state.fleet.heartbeat(heartbeat(name, waiting=2), 100.0)
    return state


def view(state: RouterState, life: SlotEpoch, request=None, now_ms: int = NOW_MS):
    return next(one for one in state.surroundings.views(request or expanded(), 101.0, now_ms) if one.life == life)


def test_a_view_puts_everything_together(state: RouterState) -> None:
    state.decided(ON_W1, NOW_MS, confirmed=False)
    seen = view(state, W1)
    assert (seen.leased, seen.healthy, seen.live, seen.capacity) == (True, True, True, 14)
    assert seen.reported == {"running": 0, "waiting": 2, "kv_usage": 0.0}
    assert (seen.active_prefill_tokens, seen.active_decode_blocks, seen.active_requests) == (128, 8, 1)
    assert (seen.overlap_predicted, seen.active_prefix_blocks, seen.worker_requests) == (8, 8, 1)
    assert view(state, W2).active_requests == 0


def test_a_view_knows_of_the_encoder_outputs_that_concern_the_prompt(state: RouterState) -> None:
    medium, span = image(16, 40, identity=7)
    request = expanded(media=[medium], spans=[span], vision_tokens=40)
    state.fleet.heartbeat(heartbeat("w1", encoder=[9, 7]), 100.0)
    assert (view(state, W1, request).encoder, view(state, W2, request).encoder) == ({7}, set())
    assert view(state, W1, expanded()).encoder == set()
    state.fleet.heartbeat(heartbeat("w1"), 100.0)
    assert view(state, W1, request).encoder == set(), "each heartbeat says all of it"


def test_what_an_ended_epoch_said_of_its_encoder_is_not_the_next_ones(state: RouterState) -> None:
    medium, span = image(16, 40, identity=7)
    request = expanded(media=[medium], spans=[span], vision_tokens=40)
    state.fleet.heartbeat(heartbeat("w1", encoder=[7]), 100.0)
    state.registered("w1", worker("w1", epoch=2), NOW_MS)
    assert view(state, SlotEpoch("w1", 0, 2), request).encoder == set()


def test_an_own_decision_counts_before_it_is_read(state: RouterState) -> None:
    state.decided(ON_W1, NOW_MS, confirmed=False)
    assert state.ledger.load(W1).requests == 1
    state.decided(ON_W1, NOW_MS, confirmed=True)
    assert state.ledger.load(W1).requests == 1


def test_a_decision_that_lost_gives_its_booking_to_the_one_that_was_first(state: RouterState) -> None:
    state.decided(ON_W1, NOW_MS, confirmed=False)
    assert state.decided(ON_W2, NOW_MS, confirmed=True) is Verdict.FIRST
    assert state.decided(ON_W1, NOW_MS, confirmed=True) is Verdict.LOST
    assert (state.ledger.load(W1).requests, state.ledger.load(W2).requests) == (0, 1)
    assert view(state, W1).overlap_predicted == 0
    assert view(state, W2).overlap_predicted == 8


def test_a_decision_that_lost_to_no_worker_frees_its_booking(state: RouterState) -> None:
    state.decided(ON_W1, NOW_MS, confirmed=False)
    state.decided(decision(expanded()), NOW_MS, confirmed=True)
    assert state.ledger.load(W1).requests == 0


def test_facts_move_the_booking_on(state: RouterState) -> None:
    state.decided(ON_W1, NOW_MS, confirmed=True)
    state.fact(fact(Event.FIRST_TOKEN), NOW_MS)
    assert (state.ledger.load(W1).prefill_tokens, state.ledger.load(W1).blocks) == (0, 8)
    state.fact(fact(Event.FINISHED), NOW_MS)
    assert state.ledger.load(W1).requests == 0
    assert view(state, W1, now_ms=NOW_MS + LINGER_MS - 1).overlap_predicted == 8
    assert view(state, W1, now_ms=NOW_MS + LINGER_MS).overlap_predicted == 0


def test_facts_before_the_decision_count_as_well(state: RouterState) -> None:
    state.fact(fact(Event.FIRST_TOKEN), NOW_MS)
    state.decided(ON_W1, NOW_MS, confirmed=True)
    assert state.ledger.load(W1).prefill_tokens == 0
    assert view(state, W1, now_ms=NOW_MS + LINGER_MS).overlap_predicted == 0


def test_finished_before_the_decision_books_nothing(state: RouterState) -> None:
    state.fact(fact(Event.FINISHED), NOW_MS)
    state.decided(ON_W1, NOW_MS, confirmed=True)
    assert state.ledger.load(W1).requests == 0
    assert view(state, W1).overlap_predicted == 0


def test_a_failed_attempt_predicts_nothing_any_more(state: RouterState) -> None:
    state.decided(ON_W1, NOW_MS, confirmed=True)
    state.fact(fact(Event.FAILED, retryable=True), NOW_MS)
    assert view(state, W1).overlap_predicted == 0
    assert state.ledger.load(W1).requests == 0


def test_a_new_epoch_begins_with_nothing(state: RouterState) -> None:
    state.decided(ON_W1, NOW_MS, confirmed=True)
    assert state.registered("w1", worker("w1", epoch=2), NOW_MS) == [W1]
    fresh = view(state, SlotEpoch("w1", 0, 2))
    assert (fresh.leased, fresh.active_requests, fresh.overlap_predicted) == (False, 0, 0)
    assert len(state.ledger) == 0


def test_a_deleted_registration_takes_the_slot_away(state: RouterState) -> None:
    assert state.registered("w1", None, NOW_MS) == [W1]
    assert [one.life for one in state.surroundings.views(expanded(), 101.0, NOW_MS)] == [W2]


def test_a_booked_route_counts_until_its_asker_reports(state: RouterState) -> None:
    state.decided(decision(expanded(route_only=True, book=True), slot("w1")), NOW_MS, confirmed=True)
    assert state.ledger.load(W1).requests == 1
    state.done("/r1", NOW_MS)
    assert state.ledger.load(W1).requests == 0


def test_a_report_may_come_before_the_decision_is_read(state: RouterState) -> None:
    state.done("/r1", NOW_MS)
    state.decided(decision(expanded(route_only=True, book=True), slot("w1")), NOW_MS, confirmed=True)
    assert state.ledger.load(W1).requests == 0


def test_decisions_read_long_after_their_deadline_leave_nothing(state: RouterState) -> None:
    late = ON_W1.deadline_ms + 60_000
    state.decided(ON_W1, late, confirmed=True)
    state.tidy(101.0, late)
    assert state.ledger.load(W1).requests == 0
    assert state.predicted.match((MODEL, 16), chain(8)) == {}
    assert len(state.requests) == 0


def test_slots_that_are_silent_for_long_are_forgotten(state: RouterState) -> None:
    state.tidy(100.0 + 6.0 + FORGET_SECONDS + 1, NOW_MS)
    assert state.fleet.states == {}
