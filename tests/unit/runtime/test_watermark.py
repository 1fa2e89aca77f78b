"""The committed offset is always the lowest unfinished one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.runtime.watermark import Watermark


def test_nothing_to_commit_before_anything_was_taken() -> None:
    assert Watermark().committable is None


def test_it_stays_at_the_lowest_unfinished_record() -> None:
    mark = Watermark()
    for offset in (5, 6, 9):
        assert mark.take(offset)
    assert mark.committable == 5
    mark.finish(6)
    mark.finish(9)
    assert mark.committable == 5
    assert mark.span == 3
    mark.finish(5)
    assert mark.committable == 10
    assert mark.span == 0


def test_a_record_that_comes_twice_is_taken_once() -> None:
    mark = Watermark()
    assert mark.take(3)
    assert not mark.take(3)
    assert mark.span == 1


def test_after_the_consumer_was_set_back_the_lower_record_counts() -> None:
    mark = Watermark()
    mark.take(10)
    mark.take(12)
    assert mark.take(4)
    assert mark.committable == 4
    mark.finish(10)
    mark.finish(4)
    assert mark.committable == 12


@given(st.lists(st.integers(0, 500), unique=True, min_size=1).map(sorted), st.randoms())
def test_whatever_the_order_of_completion(offsets: list[int], random: object) -> None:
    mark = Watermark()
    for offset in offsets:
        mark.take(offset)
    order = list(offsets)
    random.shuffle(order)  # type: ignore[attr-defined]
    finished: set[int] = set()
    for offset in order:
        mark.finish(offset)
        finished.add(offset)
        unfinished = [other for other in offsets if other not in finished]
        assert mark.committable == (unfinished[0] if unfinished else offsets[-1] + 1)
