"""Predicted entries: from the decision until two seconds after the first token, and never past the deadline."""

from __future__ import annotations

from services.router.predicted import LINGER_MS, Predicted
from services.router.slots import Attempt, SlotEpoch
from tests.unit.router.build import MODEL, chain

INDEX = (MODEL, 16)
A, B = SlotEpoch("a", 0, 1), SlotEpoch("b", 0, 1)
ONE = Attempt("/r1", 1)
DEADLINE = 100_000


def matched(predicted: Predicted) -> dict[SlotEpoch, int]:
    return predicted.match(INDEX, chain(20))


def test_a_decision_counts_for_its_slot_alone() -> None:
    predicted = Predicted()
    predicted.add(ONE, A, INDEX, chain(8), DEADLINE)
    assert matched(predicted) == {A: 8}
    assert predicted.match((MODEL, 32), chain(20)) == {}


def test_it_counts_two_seconds_longer_than_the_prefill() -> None:
    predicted = Predicted()
    predicted.add(ONE, A, INDEX, chain(8), DEADLINE)
    predicted.first_token(ONE, 5000)
    predicted.expire(5000 + LINGER_MS - 1)
    assert matched(predicted) == {A: 8}
    predicted.expire(5000 + LINGER_MS)
    assert matched(predicted) == {}
    assert len(predicted) == 0


def test_it_ends_with_the_deadline_at_the_latest() -> None:
    predicted = Predicted()
    predicted.add(ONE, A, INDEX, chain(8), DEADLINE)
    predicted.first_token(ONE, DEADLINE - 1)
    predicted.expire(DEADLINE)
    assert matched(predicted) == {}


def test_an_attempt_that_failed_predicts_nothing() -> None:
    predicted = Predicted()
    predicted.add(ONE, A, INDEX, chain(8), DEADLINE)
    predicted.drop(ONE)
    predicted.drop(ONE)
    assert matched(predicted) == {}


def test_another_decision_for_the_attempt_takes_its_place() -> None:
    predicted = Predicted()
    predicted.add(ONE, A, INDEX, chain(8), DEADLINE)
    predicted.add(ONE, B, INDEX, chain(8), DEADLINE)
    assert matched(predicted) == {B: 8}


def test_an_older_decision_for_the_same_blocks_keeps_them() -> None:
    predicted = Predicted()
    predicted.add(ONE, A, INDEX, chain(8), DEADLINE)
    predicted.add(Attempt("/r2", 1), A, INDEX, chain(8), DEADLINE)
    predicted.drop(ONE)
    assert matched(predicted) == {A: 8}


def test_a_prompt_without_addresses_predicts_nothing() -> None:
    predicted = Predicted()
    predicted.add(ONE, A, INDEX, [], DEADLINE)
    assert len(predicted) == 0
