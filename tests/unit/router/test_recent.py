"""Keys are remembered long enough and not for ever."""

from __future__ import annotations

from services.router.recent import Recent


def test_a_key_stays_for_the_time_given_and_goes_within_twice_that() -> None:
    recent: Recent[str] = Recent(keep_ms=100)
    recent.add("a", 0)
    recent.add("b", 90)
    recent.forget(99)
    assert "a" in recent
    assert "b" in recent
    recent.forget(100)
    assert "b" in recent
    recent.forget(189)
    assert "b" in recent
    recent.forget(300)
    assert "a" not in recent
    assert "b" not in recent
    assert len(recent) == 0


def test_a_long_silence_forgets_all() -> None:
    recent: Recent[str] = Recent(keep_ms=100)
    recent.add("a", 0)
    recent.add("b", 250)
    assert "a" not in recent
    assert "b" in recent
