"""Which layout an engine's answers fit: errors are outcomes, refusals of something larger are bounds."""

from __future__ import annotations

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.shapes import MediaShape
from services.layout.view import View
from services.worker.matching import Answer, Bounds, difference, judge, within_bounds
from services.worker.probe_requests import Probe


def probe(name: str, *sides: int) -> Probe:
    """A chat with square images of these sides."""
    return Probe(name, {}, tuple(MediaShape(MediaKind.IMAGE, side, side) for side in sides))


def exact(*tokens: int) -> View:
    return View(list(tokens), exact_tokens=len(tokens))


REFUSED = View([1], reason=Reason.UNSUPPORTED_MEDIA, detail="its sides' ratio is over 200")


def test_equal_tokens_fit() -> None:
    assert difference(Answer(probe("a", 8), [1, 2]), exact(1, 2)) is None


def test_a_refusal_fits_a_layout_that_refuses_too() -> None:
    assert difference(Answer(probe("thin", 8), refusal="400"), REFUSED) is None
    assert difference(Answer(probe("thin", 8), refusal="400 no"), exact(1)) == "probe thin: 400 no"
    assert "not exact" in (difference(Answer(probe("thin", 8), [1]), REFUSED) or "")


def test_a_refused_text_fits_nothing() -> None:
    """A template that raises on tools says nothing of what it makes of them elsewhere."""
    assert difference(Answer(probe("tools"), refusal="400 no tools"), REFUSED) == "probe tools: 400 no tools"


def test_only_what_is_larger_than_all_before_is_a_bound() -> None:
    small, thin, large, larger = probe("small", 50), probe("thin", 8), probe("large", 100), probe("larger", 200)
    kept, bounds = within_bounds(
        [Answer(small, [1]), Answer(thin, refusal="400"), Answer(large, refusal="400"), Answer(larger, refusal="400")]
    )
    assert [answer.probe.name for answer in kept] == ["small", "thin"]
    assert bounds == Bounds(max_pixels=2500)


def test_one_more_medium_is_a_bound_of_their_number() -> None:
    kept, bounds = within_bounds([Answer(probe("one", 50), [1]), Answer(probe("two", 50, 40), refusal="at most 1")])
    assert [answer.probe.name for answer in kept] == ["one"]
    assert bounds == Bounds(max_items=1)


def test_an_engine_that_refuses_everything_has_no_bound() -> None:
    kept, bounds = within_bounds([Answer(probe("one", 50), refusal="no"), Answer(probe("large", 90), refusal="no")])
    assert len(kept) == 2
    assert bounds == Bounds()


def test_the_layouts_that_fit_are_named_and_the_others_say_where_they_part() -> None:
    answers = [Answer(probe("a", 8), [1, 2]), Answer(probe("b", 8), [1, 3, 3])]
    verdict = judge(answers, {"old": [exact(1, 2), exact(1, 3)], "new": [exact(1, 2), exact(1, 3, 3)]})
    assert verdict.fitting == ("new",)
    assert verdict.differences["old"].startswith("probe b: the token lists part at 2")


def test_several_may_fit() -> None:
    assert judge([Answer(probe("a", 8), [1])], {"x": [exact(1)], "y": [exact(1)]}).fitting == ("x", "y")
