"""A processor's answer becomes a layout only where nothing about it is in doubt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.card import ModelCard
from services.layout.families.family import NotExact
from services.layout.families.support import supports
from services.layout.families.variants import UnknownVariant
from services.layout.layouter import Layouter
from services.layout.processor.asked import Medium, Placeholder
from services.layout.processor.card import parameters_digest
from services.layout.processor.family import ProcessorFamily
from services.layout.shapes import MediaShape
from services.layout.view import ViewSpan
from tests.unit.layout.golden import MODELS, card
from tests.unit.layout.processor import fake_processor as fake

DESCRIBED = fake.describe("/models/any")
FAMILY = ProcessorFamily(DESCRIBED, "00ff", partial(fake.expand, "/models/any"))
VARIANT = "processor/transformers-1.2.3/FakeProcessor-00ff"


def image(height: int, width: int = 56, **more: Any) -> MediaShape:
    return MediaShape(MediaKind.IMAGE, height, width, **more)


def encode(text: str) -> list[int]:
    raise AssertionError("a processor's text is its own")


@pytest.fixture
def lay_out() -> Callable[..., Any]:
    """A chat of texts and pictures under the fake processor and Qwen's template and vocabulary."""
    laid = Layouter(replace(card("qwen2.5-vl"), family=FAMILY))

    def view(*parts: str | MediaShape) -> Any:
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else
            {"type": "image_url", "image_url": {"url": "http://a/b"}} for part in parts
        ]  # fmt: skip
        body = {"model": "m", "messages": [{"role": "user", "content": content}]}
        return laid.view(body, [part for part in parts if not isinstance(part, str)])

    return view


def test_the_whole_answer_stands_in_the_placeholders_place(lay_out: Callable[..., Any]) -> None:
    view = lay_out("a", image(56), "b", image(28), "c")
    first, second = view.spans
    assert (view.reason, view.variant) == (None, VARIANT)
    assert first == ViewSpan(0, first.offset, 4, 4)
    assert second == ViewSpan(1, second.offset, 2, 2)
    assert view.token_ids.count(fake.PAD) == view.vision_tokens == 6
    assert view.exact_tokens == len(view.token_ids)


@pytest.mark.parametrize(
    ("height", "reason"),
    [
        (fake.EMPTY, Reason.PLACEHOLDER_MISMATCH),
        (fake.RUBBISH, Reason.PLACEHOLDER_MISMATCH),
        (fake.NO_VISION, Reason.PLACEHOLDER_MISMATCH),
        (fake.OPEN_END, Reason.PLACEHOLDER_MISMATCH),
        (fake.LOOSE, Reason.PLACEHOLDER_MISMATCH),
    ],
)
def test_an_answer_in_doubt_ends_exactness_at_the_medium(
    height: int, reason: Reason, lay_out: Callable[..., Any]
) -> None:
    whole, view = lay_out("a", image(56), "b"), lay_out("a", image(56), image(height), "b")
    assert (view.reason, [span.item for span in view.spans]) == (reason, [0])
    end = whole.spans[0].offset + whole.spans[0].length
    assert view.token_ids[:end] == whole.token_ids[:end]
    assert view.exact_tokens > end


def test_absurdly_many_tokens() -> None:
    family = replace(FAMILY, ask=lambda medium: [fake.PAD] * ((1 << 20) + 1))
    with pytest.raises(NotExact) as caught:
        family.expand(image(56), encode)
    assert caught.value.reason is Reason.TOO_LARGE


def test_a_placeholder_typed_as_text_is_none_of_the_medias(lay_out: Callable[..., Any]) -> None:
    view = lay_out("a <|image_pad|>", image(56))
    assert (view.reason, view.spans) == (Reason.PLACEHOLDER_MISMATCH, [])


def test_media_of_unknown_shape_and_kinds_it_does_not_take() -> None:
    for shape in (MediaShape(MediaKind.IMAGE), image(0), MediaShape(MediaKind.VIDEO, 56, 56)):
        with pytest.raises(NotExact) as caught:
            FAMILY.expand(shape, encode)
        assert caught.value.reason is Reason.UNSUPPORTED_MEDIA
    assert FAMILY.placeholder(MediaKind.VIDEO) is FAMILY.placeholder_text(MediaKind.VIDEO) is None


def test_a_video_is_asked_about_by_its_frames() -> None:
    asked: list[Medium] = []

    def ask(medium: Medium) -> list[int]:
        asked.append(medium)
        return [fake.PAD]

    takes = replace(DESCRIBED, video=Placeholder(7, "<video>", (fake.PAD,)))
    family = replace(FAMILY, described=takes, ask=ask)
    shape = MediaShape(MediaKind.VIDEO, 56, 84, frames=2, frame_indices=(0, 3), fps=4.0)
    family.expand(shape, encode)
    assert asked == [Medium("video", 56, 84, (0, 3), 4.0)]
    assert (family.video_variant, family.video_variants()) == (VARIANT, (VARIANT,))
    for unknown in (replace(shape, fps=None), replace(shape, frame_indices=())):
        with pytest.raises(NotExact):
            family.expand(unknown, encode)


def test_only_the_very_same_processor_is_the_same_layout() -> None:
    assert FAMILY.chosen(VARIANT, VARIANT) is FAMILY.under(4096) is FAMILY
    for other in ("qwen2_5_vl", VARIANT.replace("1.2.3", "1.2.4"), VARIANT.replace("00ff", "00fe")):
        with pytest.raises(UnknownVariant, match=r"workers proved .* the processor here makes"):
            FAMILY.chosen(image=other)
    assert (FAMILY.video_variant, FAMILY.video_variants((0.5,))) == ("", ())


def test_the_requests_own_arguments_are_never_exact() -> None:
    assert FAMILY.overridden({}) is FAMILY
    with pytest.raises(NotExact) as caught:
        FAMILY.overridden({"max_pixels": 9})
    assert caught.value.reason is Reason.MM_PROCESSOR_KWARGS


def test_engines_that_do_not_name_media_are_not_exact() -> None:
    assert supports("vllm", VARIANT, MediaKind.IMAGE) is None
    for engine in ("sglang", "trtllm", "other"):
        assert supports(engine, VARIANT, MediaKind.IMAGE) is Reason.UNSUPPORTED_ENGINE


def test_the_digest_is_of_all_that_a_processor_is_made_from(tmp_path: Path) -> None:
    empty = parameters_digest(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    one = parameters_digest(tmp_path)
    (tmp_path / "preprocessor_config.json").rename(tmp_path / "processor_config.json")
    assert len({empty, one, parameters_digest(tmp_path)}) == 3
    assert ModelCard.load(MODELS / "qwen2.5-vl").family is not None
