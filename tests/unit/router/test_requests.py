"""Requests in flight: the first decision counts, facts may come early, and what is to be done next."""

from __future__ import annotations

import pytest

from schemas.lifecycle import LifecycleEvent as Event
from services.router.again import Step, next_step
from services.router.requests import GRACE_MS, SAME_REQUEST_MS, Requests, Verdict
from services.router.slots import Slot, SlotEpoch
from tests.unit.router.build import NOW_MS, decision, expanded, fact, slot

KEY = "/r1"
ON_W1 = decision(expanded(), slot("w1"))
ON_W2 = decision(expanded(), slot("w2"))
SECOND = decision(expanded(), slot("w2"), attempt=2)
LOST_WORKER = {"retryable": True, "before_output": True}


@pytest.fixture
def requests() -> Requests:
    return Requests()


def step(requests: Requests, *, ended: bool = False, now_ms: int = NOW_MS, max_attempts: int = 3):
    state = requests.get(KEY)
    assert state is not None
    return next_step(state, ended=lambda life: ended, max_attempts=max_attempts, now_ms=now_ms)


def test_the_first_record_is_the_decision(requests: Requests) -> None:
    assert requests.decided(ON_W1, confirmed=True) is Verdict.FIRST
    assert requests.decided(ON_W2, confirmed=True) is Verdict.LOST
    assert requests.decided(ON_W1, confirmed=True) is Verdict.SAME
    assert requests.get(KEY).standing.life == SlotEpoch("w1", 0, 1)


def test_an_own_decision_counts_at_once_and_is_confirmed_by_reading_it(requests: Requests) -> None:
    assert requests.decided(ON_W1, confirmed=False) is Verdict.FIRST
    assert not requests.get(KEY).standing.confirmed
    assert requests.decided(ON_W1, confirmed=True) is Verdict.SAME
    assert requests.get(KEY).standing.confirmed


def test_an_own_decision_gives_way_to_one_that_was_first(requests: Requests) -> None:
    requests.decided(ON_W1, confirmed=False)
    assert requests.decided(ON_W2, confirmed=True) is Verdict.FIRST
    assert requests.decided(ON_W1, confirmed=True) is Verdict.LOST
    assert requests.get(KEY).standing.life == SlotEpoch("w2", 0, 1)
    assert requests.on_life(SlotEpoch("w1", 0, 1)) == frozenset()
    assert requests.on_life(SlotEpoch("w2", 0, 1)) == {KEY}


def test_a_new_attempt_knows_where_the_others_went(requests: Requests) -> None:
    requests.decided(ON_W1, confirmed=True)
    requests.decided(SECOND, confirmed=True)
    state = requests.get(KEY)
    assert (state.last, state.tried) == (2, {Slot("w1", 0), Slot("w2", 0)})


@pytest.mark.parametrize("event", [Event.FINISHED, Event.CANCELLED])
def test_a_request_ends_with_its_answer_or_its_client(requests: Requests, event: Event) -> None:
    requests.decided(ON_W1, confirmed=True)
    requests.fact(fact(event), NOW_MS)
    assert requests.get(KEY) is None
    assert requests.settled(KEY)
    assert requests.decided(ON_W2, confirmed=True) is Verdict.SAME
    assert requests.lives() == []


def test_an_end_read_before_its_decision_holds(requests: Requests) -> None:
    requests.fact(fact(Event.FINISHED), NOW_MS)
    requests.decided(ON_W1, confirmed=True)
    assert requests.get(KEY) is None


def test_what_a_worker_says_whose_decision_lost_is_not_about_the_request(requests: Requests) -> None:
    requests.decided(ON_W1, confirmed=True)
    for event in (Event.FIRST_TOKEN, Event.FAILED, Event.FINISHED):
        requests.fact(fact(event, worker_id="w2", epoch=1, **LOST_WORKER), NOW_MS)
    assert step(requests).step is Step.WAIT
    assert not requests.get(KEY).standing.started


def test_a_workers_failure_read_before_its_decision_turned_out_to_be_first_holds(requests: Requests) -> None:
    requests.decided(ON_W1, confirmed=False)
    requests.fact(fact(Event.FAILED, worker_id="w2", epoch=1, **LOST_WORKER), NOW_MS)
    assert step(requests).step is Step.WAIT
    requests.decided(ON_W2, confirmed=True)
    assert step(requests).step is Step.ROUTE_AGAIN


def test_the_late_end_of_an_attempt_that_was_given_up_does_not_end_the_next(requests: Requests) -> None:
    requests.decided(ON_W1, confirmed=True)
    requests.decided(SECOND, confirmed=True)
    requests.fact(fact(Event.FINISHED, worker_id="w1", epoch=1), NOW_MS)
    assert requests.get(KEY) is not None
    requests.fact(fact(Event.FINISHED, attempt=2, worker_id="w2", epoch=1), NOW_MS)
    assert requests.settled(KEY)


def test_a_first_token_read_before_its_decision_holds(requests: Requests) -> None:
    requests.fact(fact(Event.FIRST_TOKEN), NOW_MS)
    requests.decided(ON_W1, confirmed=True)
    assert requests.get(KEY).standing.started


def test_a_failure_read_before_its_decision_holds(requests: Requests) -> None:
    requests.fact(fact(Event.FAILED, **LOST_WORKER), NOW_MS)
    requests.decided(ON_W1, confirmed=True)
    assert step(requests).step is Step.ROUTE_AGAIN


def test_a_refusal_before_any_decision_ends_the_request(requests: Requests) -> None:
    requests.fact(fact(Event.ACCEPTED, attempt=0), NOW_MS)
    assert not requests.settled(KEY)
    requests.fact(fact(Event.REFUSED, attempt=0), NOW_MS)
    assert requests.settled(KEY)


def test_a_late_failure_of_an_older_attempt_ends_nothing(requests: Requests) -> None:
    requests.decided(ON_W1, confirmed=True)
    requests.decided(SECOND, confirmed=True)
    requests.fact(fact(Event.FAILED, attempt=1), NOW_MS)
    assert requests.get(KEY) is not None
    requests.fact(fact(Event.FAILED, attempt=2), NOW_MS)
    assert requests.settled(KEY)


def test_requests_are_followed_until_a_while_after_their_deadline(requests: Requests) -> None:
    requests.decided(ON_W1, confirmed=True)
    requests.expire(ON_W1.deadline_ms + GRACE_MS - 1)
    assert len(requests) == 1
    requests.expire(ON_W1.deadline_ms + GRACE_MS)
    assert len(requests) == 0
    assert requests.settled(KEY)


def test_the_same_id_is_the_same_request_for_an_hour(requests: Requests) -> None:
    requests.settle(KEY, NOW_MS)
    requests.expire(NOW_MS + SAME_REQUEST_MS - 1)
    assert requests.settled(KEY)
    requests.expire(NOW_MS + SAME_REQUEST_MS)
    requests.expire(NOW_MS + 3 * SAME_REQUEST_MS)
    assert not requests.settled(KEY)


def test_requests_are_found_by_the_partition_of_their_record(requests: Requests) -> None:
    requests.decided(ON_W1, confirmed=True)
    assert [state.key for state in requests.of_partitions([0])] == [KEY]
    assert requests.of_partitions([1]) == []


def test_what_is_kept_of_a_decision_is_small(requests: Requests) -> None:
    requests.decided(decision(expanded(tokens=32_000), *(slot(f"w{n}") for n in range(40))), confirmed=True)
    assert len(requests.get(KEY).standing.decision.to_bytes()) < 2000


def test_a_healthy_attempt_waits(requests: Requests) -> None:
    requests.decided(ON_W1, confirmed=True)
    assert step(requests).step is Step.WAIT


@pytest.mark.parametrize("event", [Event.FAILED, Event.REFUSED])
def test_a_worker_that_failed_before_output_is_replaced(requests: Requests, event: Event) -> None:
    requests.decided(ON_W1, confirmed=True)
    requests.fact(fact(event, **LOST_WORKER), NOW_MS)
    assert step(requests).step is Step.ROUTE_AGAIN


@pytest.mark.parametrize(
    "flags", [{"retryable": False, "before_output": True}, {"retryable": True, "before_output": False}]
)
def test_other_failures_end_the_request(requests: Requests, flags: dict[str, bool]) -> None:
    requests.decided(ON_W1, confirmed=True)
    requests.fact(fact(Event.FAILED, **flags), NOW_MS)
    assert requests.settled(KEY)


def test_a_life_that_ended_before_output_is_tried_elsewhere(requests: Requests) -> None:
    requests.decided(ON_W1, confirmed=True)
    assert step(requests, ended=True).step is Step.ROUTE_AGAIN


def test_a_life_that_ended_after_output_is_only_stated(requests: Requests) -> None:
    requests.decided(ON_W1, confirmed=True)
    requests.fact(fact(Event.FIRST_TOKEN), NOW_MS)
    assert step(requests, ended=True).step is Step.STATE_LOSS


def test_attempts_are_bounded(requests: Requests) -> None:
    requests.decided(ON_W1, confirmed=True)
    requests.decided(SECOND, confirmed=True)
    assert step(requests, ended=True, max_attempts=3).step is Step.ROUTE_AGAIN
    assert step(requests, ended=True, max_attempts=2).step is Step.GIVE_UP


def test_nothing_is_tried_after_the_deadline(requests: Requests) -> None:
    requests.decided(ON_W1, confirmed=True)
    found = step(requests, ended=True, now_ms=ON_W1.deadline_ms)
    assert (found.step, found.status, found.code) == (Step.GIVE_UP, 504, "deadline_exceeded")


def test_a_question_for_the_route_is_never_routed_again(requests: Requests) -> None:
    requests.decided(decision(expanded(route_only=True), slot("w1")), confirmed=True)
    assert step(requests, ended=True).step is Step.WAIT
