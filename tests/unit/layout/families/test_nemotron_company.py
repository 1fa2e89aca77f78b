"""What Nemotron's media do to each other: a shared budget of images, and videos that are laid out one alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.kv.reason import Reason
from services.layout.families.nemotron import Nemotron
from services.layout.shapes import MediaShape
from tests.unit.layout.families.reading import clip, family_of, image, laid_out, spans
from tests.unit.layout.golden import golden

NAME = "nemotron_nano_omni"
VIDEO = clip(64, 64, [0, 1], 2.0)
LARGE = image(1080, 1920)


def nemotron(max_model_len: int | None = 131072) -> Nemotron:
    family = family_of(NAME)
    assert isinstance(family, Nemotron)
    return family.under(max_model_len)


def why(prompt: str, media: list[MediaShape], length: int | None = 131072) -> tuple[Reason | None, int]:
    view = laid_out(NAME, prompt, media, nemotron(length))
    return view.reason, len(view.spans)


def test_images_fit_together_or_none_is_exact() -> None:
    assert why("<image><image>", [LARGE, LARGE], 4096) == (None, 2)
    assert why("<image><image><image>", [LARGE] * 3, 4096) == (Reason.BUDGET_EXCEEDED, 0)
    assert why("<image><image><image>", [LARGE] * 3, 131072) == (None, 3)


def test_what_a_full_budget_makes_is_an_estimate() -> None:
    shrunk = golden("nemotron_nano_omni_image")["budget_full_apply_cases"][0]
    sizes = [image(*size) for size in shrunk["sizes_hw"]]
    view = laid_out(NAME, shrunk["prompt"], sizes, nemotron(shrunk["max_model_len"]))
    assert (view.reason, view.exact_tokens) == (Reason.BUDGET_EXCEEDED, shrunk["placeholders"][0]["offset"])
    assert "max_model_len 4096" in (view.detail or "")
    assert sum(shrunk["num_image_tokens"]) < view.vision_tokens == 3 * 2040


def test_the_least_an_image_gets_times_their_number_counts_too() -> None:
    small = image(32, 32)
    assert why("<image>", [small], 600) == (None, 1)
    assert why("<image>" * 3, [small] * 3, 600) == (Reason.BUDGET_EXCEEDED, 0), "alone and together differ"


def test_an_image_of_unknown_size_may_be_the_largest() -> None:
    unknown = MediaShape(LARGE.kind, reason=Reason.FETCH_FAILED)
    assert why("<image><image>", [LARGE, unknown], 131072) == (Reason.FETCH_FAILED, 1)
    assert why("<image><image>", [LARGE, unknown], 6000) == (Reason.BUDGET_EXCEEDED, 0)


def test_without_the_engines_length_no_image_is_exact_but_videos_are() -> None:
    assert why("<image>", [LARGE], None) == (Reason.CONTRACT_MISSING, 0)
    assert why("<video>", [VIDEO], None) == (None, 1)


@pytest.mark.parametrize(
    ("prompt", "media", "expected"),
    [
        ("<video>", [VIDEO], (None, 1)),
        ("<video> and <video>", [VIDEO, VIDEO], (Reason.MULTIPLE_VIDEOS, 0)),
        ("<video><video>", [VIDEO, VIDEO], (Reason.ADJACENT_VIDEOS, 0)),
        ("<video>\n<video>", [VIDEO, VIDEO], (Reason.ADJACENT_VIDEOS, 0)),
        ("<image> then <video>", [LARGE, VIDEO], (Reason.MIXED_MEDIA, 1)),
        ("<video> then <image>", [VIDEO, LARGE], (Reason.MIXED_MEDIA, 0)),
    ],
)
def test_one_video_alone(prompt: str, media: list[MediaShape], expected: tuple[Reason | None, int]) -> None:
    assert why(prompt, media) == expected


def test_a_very_thin_image_exceeds_its_own_budget() -> None:
    thin = image(1, 13000 * 16)
    assert why("<image>", [thin], 131072) == (None, 1)
    assert why("<image>", [thin], 4096) == (Reason.BUDGET_EXCEEDED, 0)


def test_a_checkpoint_with_tiles_has_no_budget() -> None:
    tiles = replace(nemotron(None), budget=None)
    view = laid_out(NAME, "<image>" * 9, [image(1536, 2048)] * 9, tiles)
    assert (view.reason, view.variant) == (None, "nemotron_nano_omni")
    assert [length for _, length in spans(view)] == [13 * 256 + 2] * 9


def test_a_video_in_a_vocabulary_that_has_no_token_for_it() -> None:
    family = nemotron()
    silent = replace(family, ids=replace(family.ids, video=None))
    assert (silent.video_variant, silent.video_variants((0.5,))) == ("", ())
    assert laid_out(NAME, "<video>", [VIDEO], silent).reason is Reason.PLACEHOLDER_MISMATCH
