"""The ledger: shared blocks once, prefill until the first token, and zero at the end in whatever order facts come."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.ledger import GRACE_MS, REMEMBER_MS, Booking, Ledger, SlotLoad
from services.router.slots import Attempt, SlotEpoch
from tests.unit.router.build import MODEL, chain

INDEX = (MODEL, 16)
A, B = SlotEpoch("a", 0, 1), SlotEpoch("b", 0, 1)
ONE, TWO = Attempt("/r1", 1), Attempt("/r2", 1)


def booking(life: SlotEpoch = A, blocks: int = 8, *, root: int = 1, unaddressed: int = 0) -> Booking:
    return Booking(life, INDEX, 100, chain(blocks, root), unaddressed, deadline_ms=10_000)


def test_a_booking_counts_until_its_end() -> None:
    ledger = Ledger()
    ledger.book(ONE, booking(unaddressed=2))
    assert ledger.load(A) == SlotLoad(100, 10, 1)
    assert ledger.load(B) == SlotLoad()
    ledger.close(ONE, 0)
    assert ledger.load(A) == SlotLoad()


def test_the_first_token_ends_the_prefill_and_nothing_else() -> None:
    ledger = Ledger()
    ledger.book(ONE, booking())
    ledger.first_token(ONE, 0)
    assert ledger.load(A) == SlotLoad(0, 8, 1)


def test_shared_prompt_blocks_count_once_as_long_as_one_request_holds_them() -> None:
    ledger = Ledger()
    ledger.book(ONE, booking(blocks=8))
    ledger.book(TWO, booking(blocks=5))
    assert ledger.load(A).blocks == 8
    assert ledger.active(INDEX, chain(20)) == {A: 8}
    ledger.close(ONE, 0)
    assert ledger.load(A).blocks == 5
    assert ledger.active(INDEX, chain(20)) == {A: 5}


def test_booking_twice_books_once() -> None:
    ledger = Ledger()
    ledger.book(ONE, booking())
    ledger.book(ONE, booking())
    assert ledger.load(A) == SlotLoad(100, 8, 1)


def test_another_slot_for_the_same_attempt_moves_the_booking() -> None:
    ledger = Ledger()
    ledger.book(ONE, booking(A))
    ledger.book(ONE, booking(B))
    assert ledger.load(A) == SlotLoad()
    assert ledger.load(B) == SlotLoad(100, 8, 1)


def test_an_end_that_comes_first_leaves_the_booking_without_effect_for_ten_minutes() -> None:
    ledger = Ledger()
    ledger.close(ONE, 0)
    ledger.expire(REMEMBER_MS - 1)
    ledger.book(ONE, booking())
    assert ledger.load(A) == SlotLoad()


def test_a_first_token_that_comes_first_leaves_no_prefill_to_book() -> None:
    ledger = Ledger()
    ledger.first_token(ONE, 0)
    ledger.book(ONE, booking())
    assert ledger.load(A) == SlotLoad(0, 8, 1)


def test_a_booking_that_nobody_ends_is_given_up_after_its_deadline() -> None:
    ledger = Ledger()
    ledger.book(ONE, booking())
    ledger.expire(10_000 + GRACE_MS - 1)
    assert len(ledger) == 1
    ledger.expire(10_000 + GRACE_MS)
    assert ledger.load(A) == SlotLoad()


def test_the_end_of_a_life_ends_its_attempts() -> None:
    ledger = Ledger()
    ledger.book(ONE, booking(A))
    ledger.book(TWO, booking(B))
    ledger.close_life(A, 0)
    assert ledger.load(A) == SlotLoad()
    assert ledger.load(B).requests == 1


@pytest.mark.parametrize("order", list(permutations(["book", "first_token", "close"])))
def test_any_order_ends_at_zero(order: tuple[str, ...]) -> None:
    ledger = Ledger()
    for step in order:
        _apply(ledger, step, ONE, A)
    assert ledger.load(A) == SlotLoad()


def _apply(ledger: Ledger, step: str, attempt: Attempt, life: SlotEpoch) -> None:
    if step == "book":
        ledger.book(attempt, booking(life, root=int(attempt.request[2:])))
    elif step == "first_token":
        ledger.first_token(attempt, 0)
    else:
        ledger.close(attempt, 0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["book", "first_token", "close"]),
        st.builds(Attempt, st.sampled_from(["/r1", "/r2", "/r3"]), st.integers(1, 2)),
        st.sampled_from([A, B]),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_sums_are_never_negative_and_are_zero_when_all_ended(steps) -> None:
    ledger = Ledger()
    for step in steps:
        _apply(ledger, *step)
        for life in (A, B):
            load = ledger.load(life)
            assert load.prefill_tokens >= 0
            assert load.blocks >= 0
            assert load.requests >= 0
    for _, attempt, _ in steps:
        ledger.close(attempt, 0)
    assert ledger.load(A) == ledger.load(B) == SlotLoad()
    assert len(ledger) == 0
    assert ledger.active(INDEX, chain(8)) == {}


@settings(max_examples=60, deadline=None)
@given(STEPS, st.randoms(use_true_random=False))
def test_the_sums_depend_on_the_facts_not_on_their_order(steps, rng) -> None:
    home = {attempt: life for _, attempt, life in reversed(steps)}
    facts = [(step, attempt, home[attempt]) for step, attempt, _ in steps]
    shuffled = facts + facts[: len(facts) // 2]
    rng.shuffle(shuffled)
    one, other = Ledger(), Ledger()
    for step in facts:
        _apply(one, *step)
    for step in shuffled:
        _apply(other, *step)
    assert one.load(A) == other.load(A)
    assert one.load(B) == other.load(B)
