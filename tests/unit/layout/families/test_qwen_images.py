"""Images of the Qwen families, token for token, against vLLM's own processors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.families.family import NotExact
from services.layout.families.qwen import QwenVision
from services.layout.shapes import MediaShape
from tests.unit.layout.families.reading import FOLDERS, family_of, image, laid_out, ranges, spans
from tests.unit.layout.golden import golden, layouter, unrolled

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"]


@pytest.mark.parametrize("family", FAMILIES)
def test_one_image(family: str) -> None:
    data = golden(f"{family}_image")
    for case in data["cases"]:
        view = laid_out(family, data["prompt"], [image(case["h"], case["w"])])
        where = (case["h"], case["w"])
        if "error" in case:
            assert view.reason is Reason.UNSUPPORTED_MEDIA, where
            continue
        assert view.reason is None, where
        assert view.token_ids == unrolled(case["rle"]), where
        assert len(view.token_ids) == view.exact_tokens == view.prompt_tokens == case["prompt_len"], where
        (span,) = view.spans
        assert (span.offset, span.length) == (case["placeholder"]["offset"], case["placeholder"]["length"]), where
        assert span.vision_tokens == view.vision_tokens == case["num_image_tokens"], where


@pytest.mark.parametrize("family", FAMILIES)
def test_several_images(family: str) -> None:
    for case in golden(f"{family}_image")["multi_image_cases"]:
        view = laid_out(family, case["prompt"], [image(*size) for size in case["sizes_hw"]])
        assert view.token_ids == unrolled(case["rle"])
        assert spans(view) == ranges(case["placeholders"])
        assert [span.item for span in view.spans] == list(range(len(case["sizes_hw"])))


@pytest.mark.parametrize(
    "case", [c for c in golden("qwen_mixed_and_pruning")["cases"] if not c["videos"]], ids=lambda case: str(case["tag"])
)
def test_a_system_prompt_before_it_and_overridden_pixel_bounds(case: dict[str, Any]) -> None:
    family = family_of(case["family"]).overridden(case["mm_processor_kwargs"])
    view = laid_out(case["family"], case["prompt"], [image(*size) for size in case["images_hw"]], family)
    assert view.token_ids == unrolled(case["rle"])
    assert spans(view) == ranges(case["placeholders"]["image"])


def test_a_partial_override_is_completed_from_the_processor() -> None:
    family = family_of("qwen3_vl")
    assert isinstance(family, QwenVision)
    changed = family.overridden({"size": {"longest_edge": 1 << 20}})
    assert changed.image == replace(family.image, max_pixels=1 << 20)
    assert family.overridden({"max_pixels": 9, "size": {"longest_edge": 8}}).image.max_pixels == 9


@pytest.mark.parametrize(
    ("bound", "reason"), [(10**15, Reason.TOO_LARGE), (10**400, Reason.UNSUPPORTED_MEDIA)], ids=["15", "400 digits"]
)
def test_absurd_bounds_take_no_memory(bound: int, reason: Reason) -> None:
    for name in ("qwen2_vl", "qwen3_vl"):
        family = family_of(name).overridden({"min_pixels": bound})
        view = laid_out(name, "<|vision_start|><|image_pad|><|vision_end|>", [image(56, 56)], family)
        assert (view.reason, len(view.token_ids)) == (reason, 3)


@pytest.mark.parametrize("kwargs", [{"fps": 3}, {"min_pixels": "many"}, {"min_pixels": -1}, {"size": [1]}])
def test_an_override_that_is_not_understood_is_not_guessed(kwargs: dict[str, Any]) -> None:
    with pytest.raises(NotExact) as caught:
        family_of("qwen2_vl").overridden(kwargs)
    assert caught.value.reason is Reason.MM_PROCESSOR_KWARGS


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (image(1, 201), "ratio"),
        (image(0, 5), "positive"),
        (MediaShape(MediaKind.IMAGE, None, 5), "unknown"),
        (MediaShape(MediaKind.VIDEO, 64, 64), "unknown"),
    ],
)
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_a_size_the_engine_refuses_or_nobody_knows_is_not_exact(family: str, shape: MediaShape, said: str) -> None:
    pad = "image_pad" if shape.kind is MediaKind.IMAGE else "video_pad"
    view = laid_out(family, f"a <|vision_start|><|{pad}|><|vision_end|> b", [shape])
    assert view.reason is Reason.UNSUPPORTED_MEDIA
    assert said in (view.detail or "")
    assert view.token_ids[: view.exact_tokens] == layouter(FOLDERS[family]).encode("a <|vision_start|>")
    assert view.spans == []
    assert view.prompt_tokens > len(view.token_ids), "an unknown medium counts in the estimate"
