"""Facts about one attempt make one row whatever their order and however often they come."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from schemas.lifecycle import LifecycleEvent
from schemas.worker import WorkerState
from services.audit import tables
from services.audit.merge import CONTRACTS, OUTCOMES, REQUESTS, WORKERS, Merging, fold, merged
from services.audit.rows import lifecycle_rows, worker_rows
from tests.fakes.audit_records import NOON_MS, fact, finished, worker

facts = st.builds(
    fact,
    event=st.sampled_from(sorted(LifecycleEvent)),
    after_ms=st.integers(0, 3),
    stage=st.sampled_from(["agent", "gateway", "router"]),
    worker_id=st.sampled_from([None, "w1", "w2"]),
)
rows = st.lists(facts.map(lambda one: lifecycle_rows(one).outcomes[0]), min_size=1, max_size=6)


def outcome(*messages):
    (row,) = fold(OUTCOMES, [lifecycle_rows(message).outcomes[0] for message in messages])
    return row


def test_every_column_has_one_rule():
    for table, merging in (
        (tables.requests, REQUESTS), (tables.outcomes, OUTCOMES), (tables.workers, WORKERS),
        (tables.contracts, CONTRACTS),
    ):  # fmt: skip
        ruled = [*merging.key, *merging.smallest, *merging.largest, *merging.leading]
        assert sorted(ruled) == sorted(table.c.keys())


def test_an_attempt_in_all_orders_is_the_same_row():
    life = [
        fact(LifecycleEvent.ACCEPTED, after_ms=10),
        fact(LifecycleEvent.FIRST_TOKEN, after_ms=120),
        finished(after_ms=900, cached=48),
    ]
    results = [outcome(*order) for order in permutations(life)]
    assert all(result == results[0] for result in results)
    assert results[0] | {"status": "finished", "ttft_ms": 120, "total_ms": 900, "cached_tokens": 48} == results[0]


def test_a_cancel_that_came_too_late_does_not_undo_an_answer():
    late = fact(LifecycleEvent.CANCELLED, after_ms=950, stage="gateway")
    assert outcome(late, finished(after_ms=900))["status"] == "finished"
    assert outcome(finished(after_ms=900), late)["total_ms"] == 900


def test_of_two_failures_the_earlier_is_told():
    first = fact(LifecycleEvent.FAILED, after_ms=5, code="engine_gone", detail="connection refused")
    second = fact(LifecycleEvent.FAILED, after_ms=9, code="deadline", detail="too late")
    assert outcome(second, first)["code"] == "engine_gone"
    assert outcome(second, first)["detail"] == "connection refused"


@given(rows)
def test_merging_is_commutative(some):
    forwards, backwards = fold(OUTCOMES, some), fold(OUTCOMES, list(reversed(some)))
    assert forwards == backwards


@given(rows)
def test_merging_is_idempotent(some):
    once = fold(OUTCOMES, some)
    assert fold(OUTCOMES, [*once, *some, *once]) == once


@given(rows, st.integers(0, 6))
def test_merging_is_associative(some, at):
    parts = [part for part in (some[:at], some[at:]) if part]
    assert fold(OUTCOMES, [row for part in parts for row in fold(OUTCOMES, part)]) == fold(OUTCOMES, some)


def test_the_newest_registration_of_a_life_counts():
    live, draining = worker(at_ms=NOON_MS + 1), worker(at_ms=NOON_MS + 2, state=WorkerState.DRAINING)
    for order in permutations([live, draining]):
        (row,) = fold(WORKERS, [worker_rows(one).workers[0] for one in order])
        assert row["state"] == "draining"


def test_rows_come_out_in_key_order():
    some = [{"id": 2, "seen": 1}, {"id": 1, "seen": None}, {"id": 2, "seen": 5}]
    merging = Merging("t", key=("id",), largest=frozenset({"seen"}))
    assert fold(merging, some) == [{"id": 1, "seen": None}, {"id": 2, "seen": 5}]
    assert merged(merging, some[0], some[2]) == {"id": 2, "seen": 5}
