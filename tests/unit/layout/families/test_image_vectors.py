"""Images of LLaVA, LLaVA-NeXT, Llama 4, Kimi and Nemotron against what vLLM's own processors made of them.

The Qwen families have their own file. Text ids of LLaVA 1.5, Llama 4, Kimi and Nemotron are those of stand-in
tokenizers here: the structure is compared in this vocabulary, and ids only where the vocabulary is the real one
(LLaVA-NeXT).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.kv.reason import Reason
from services.layout.families.kimi_k25 import KimiK25
from services.layout.families.nemotron import Nemotron
from tests.unit.layout.families.reading import family_of, image, laid_out, ranges, spans, tokens_of
from tests.unit.layout.golden import golden, unrolled

FAMILIES = ["llava_1_5", "llava_next", "llama4", "kimi_k25", "nemotron_nano_omni"]
REAL_VOCABULARY = ["llava_next"]
SAME_STAND_IN = ["kimi_k25", "nemotron_nano_omni"]
"""The vectors were made with the very tokenizer of the model folder, so offsets are comparable."""


def check(name: str, prompt: str, sizes: list[list[int]], expected: dict[str, Any]) -> None:
    family = family_of(name)
    if isinstance(family, Nemotron):
        family = family.under(expected.get("max_model_len", 131072))
    view = laid_out(name, prompt, [image(*size) for size in sizes], family)
    assert view.reason is None, (sizes, view.detail)
    tokens = expected.get("num_image_tokens", expected.get("num_patch_tokens"))
    if isinstance(tokens, int):
        assert view.vision_tokens == tokens, sizes
    if "structure" not in expected:  # of the largest images the vectors say no more
        return
    assert view.token_ids == tokens_of(name, expected["structure"]), sizes
    places = expected.get("placeholders") or [expected["placeholder"]]
    assert [length for _, length in spans(view)] == [place["length"] for place in places], sizes
    assert [span.vision_tokens for span in view.spans] == [place["num_embeds"] for place in places], sizes
    if name in REAL_VOCABULARY + SAME_STAND_IN:
        assert spans(view) == ranges(places), sizes
    if name in REAL_VOCABULARY and "rle" in expected:
        assert view.token_ids == unrolled(expected["rle"]), sizes


@pytest.mark.parametrize("name", FAMILIES)
def test_one_image(name: str) -> None:
    data = golden(f"{name}_image")
    for case in data["cases"]:
        if "error" in case:
            view = laid_out(name, data["prompt"], [image(case["h"], case["w"])])
            assert view.reason is Reason.UNSUPPORTED_MEDIA, case
            continue
        check(name, data["prompt"], [[case["h"], case["w"]]], case)


@pytest.mark.parametrize("name", ["llava_1_5", "llava_next", "llama4", "kimi_k25"])
def test_several_images_expand_in_order(name: str) -> None:
    for case in golden(f"{name}_image")["multi_image_cases"]:
        check(name, case["prompt"], case["sizes_hw"], case)


def test_nemotron_images_that_fit_together() -> None:
    fits = golden("nemotron_nano_omni_image")["budget_full_apply_cases"][1]
    check("nemotron_nano_omni", fits["prompt"], fits["sizes_hw"], fits)


def test_llama_4s_range_goes_from_start_to_end() -> None:
    view = laid_out("llama4", "<|image|>", [image(1, 1)])
    assert view.token_ids == [200080, 200090, *[200092] * 144, 200081]
    assert spans(view) == [(0, 147)]


def test_kimis_video_chunks_are_sized_as_images_of_a_smaller_budget() -> None:
    """Engines don't lay out Kimi's videos, but the geometry of a chunk's frames is that of images."""
    family = family_of("kimi_k25")
    assert isinstance(family, KimiK25)
    frames = replace(family.limits, total=4096)
    for case in golden("kimi_k25_image")["video_chunk_cases"]:
        assert frames.resized(case["h"], case["w"]) == (case["new_height"], case["new_width"]), case
        assert frames.tokens(case["h"], case["w"]) == case["num_tokens"], case


@pytest.mark.parametrize("name", FAMILIES)
def test_a_medium_the_family_does_not_know_is_not_laid_out(name: str) -> None:
    view = laid_out(name, "a b", [image(None, 5)])
    assert view.reason is Reason.PLACEHOLDER_MISMATCH
    placeholder = {"llama4": "<|image|>", "kimi_k25": "<|media_pad|>"}.get(name, "<image>")
    view = laid_out(name, f"a {placeholder} b", [image(None, 5)])
    assert (view.reason, view.detail) == (Reason.UNSUPPORTED_MEDIA, "the size of the image is unknown")
    view = laid_out(name, f"a {placeholder} b", [image(0, 5)])
    assert view.reason is Reason.UNSUPPORTED_MEDIA
    assert "positive" in (view.detail or "")
