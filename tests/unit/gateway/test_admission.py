"""Who is let in: counts that always come back to zero, and an outlook that neither panics nor sleeps."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.admission import ALWAYS_ADMITTED, REMEMBERED_SECONDS, Admission, TooBusy


@given(st.lists(st.booleans(), max_size=60))
def test_never_more_than_the_limit_and_never_negative(steps: list[bool]) -> None:
    admission = Admission(3, 100)
    inside: list[ExitStack] = []
    for enters in steps:
        if enters:
            one = ExitStack()
            try:
                one.enter_context(admission.entered())
            except TooBusy:
                assert len(inside) == 3
            else:
                inside.append(one)
        elif inside:
            inside.pop().close()
        assert admission.in_flight == len(inside) <= 3


def test_bytes() -> None:
    admission = Admission(3, 100)
    admission.take_bytes(60)
    with pytest.raises(TooBusy):
        admission.take_bytes(41)
    admission.give_back(60)
    admission.take_bytes(100)


class TestOutlook:
    def waiting(self, count: int, since: float = 0.0) -> Admission:
        admission = Admission(1000, 100)
        for number in range(count):
            admission.published(str(number), since)
        return admission

    def test_nobody_waits(self) -> None:
        assert Admission(1, 1).outlook(5.0) == 0.0

    def test_is_the_median_of_what_was_seen(self) -> None:
        admission = self.waiting(9)
        for number, took in enumerate((1.0, 2.0, 10.0)):
            admission.answered(str(number), took)
        assert admission.outlook(10.0) == 2.0

    def test_is_the_longest_wait_when_nothing_comes(self) -> None:
        assert self.waiting(9, since=10.0).outlook(50.0) == 40.0

    def test_forgets(self) -> None:
        admission = self.waiting(2)
        admission.answered("0", 20.0)
        assert admission.outlook(20.0 + REMEMBERED_SECONDS - 1) == 20.0
        admission.gone("1")
        assert admission.outlook(21.0 + REMEMBERED_SECONDS) == 0.0

    def test_some_are_always_let_in_to_find_out(self) -> None:
        self.waiting(ALWAYS_ADMITTED - 1).check_outlook(1.0, 100.0)
        with pytest.raises(TooBusy) as caught:
            self.waiting(ALWAYS_ADMITTED).check_outlook(1.0, 100.0)
        assert caught.value.retry_after == 50

    def test_what_never_waited_is_no_answer(self) -> None:
        admission = Admission(1, 1)
        admission.answered("stranger", 5.0)
        assert admission.outlook(5.0) == 0.0
