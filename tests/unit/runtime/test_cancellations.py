"""Orders on ``control``: who was cancelled, for how long, and who else listens."""

from __future__ import annotations

import pytest

from schemas.control import Control, ControlKind
from services.runtime.bus import Record
from services.runtime.cancellations import KEEP_SECONDS, Cancellations
from services.runtime.errors import BadRecord
from tests.fakes import FakeClock


def cancel(request_id: str, attempt: int = 0, tenant: str = "") -> Control:
    return Control(kind=ControlKind.CANCEL, at_ms=0, request_id=request_id, tenant=tenant, attempt=attempt)


def test_a_request_of_one_tenant_is_cancelled_for_all_its_attempts() -> None:
    subject = Cancellations(FakeClock())
    subject.take(cancel("r1", tenant="a"))
    assert subject.is_cancelled("a/r1")
    assert subject.is_cancelled("a/r1", 2)
    assert not subject.is_cancelled("/r1")
    assert not subject.is_cancelled("a/r2")


def test_one_attempt_can_be_cancelled_alone() -> None:
    subject = Cancellations(FakeClock())
    subject.take(cancel("r1", attempt=1))
    assert subject.is_cancelled("/r1", 1)
    assert not subject.is_cancelled("/r1", 2)
    assert not subject.is_cancelled("/r1")


def test_it_forgets_after_ten_minutes_and_stays_small() -> None:
    clock = FakeClock()
    subject = Cancellations(clock)
    for n in range(1000):
        subject.take(cancel(f"r{n}"))
        clock.advance(KEEP_SECONDS / 100)
    assert len(subject) <= 100
    assert not subject.is_cancelled("/r0")
    assert subject.is_cancelled("/r999")


def test_a_repeated_order_counts_from_the_last_one() -> None:
    clock = FakeClock()
    subject = Cancellations(clock)
    subject.take(cancel("r1"))
    clock.advance(KEEP_SECONDS - 1)
    subject.take(cancel("r1"))
    clock.advance(KEEP_SECONDS - 1)
    assert subject.is_cancelled("/r1")


def test_listeners_hear_every_kind_and_one_that_fails_stops_nobody() -> None:
    subject = Cancellations(FakeClock())
    heard: list[Control] = []

    def broken(_: Control) -> None:
        raise RuntimeError("bug")

    subject.on_control(broken)
    subject.on_control(heard.append)
    order = Control(kind=ControlKind.SNAPSHOT, at_ms=0, worker_id="w1")
    subject.take(order)
    assert heard == [order]
    assert len(subject) == 0


def test_records_are_read_and_rubbish_is_a_bad_record() -> None:
    subject = Cancellations(FakeClock())
    subject.apply(Record("kvroute.control.v1", 0, 0, 0, b"k", cancel("r1").to_bytes()))
    subject.apply(Record("kvroute.control.v1", 0, 1, 0, b"k", None))
    assert subject.is_cancelled("/r1")
    with pytest.raises(BadRecord, match="control record"):
        subject.apply(Record("kvroute.control.v1", 0, 2, 0, b"k", b"{"))
