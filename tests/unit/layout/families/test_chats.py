"""From a chat body to a view in every family: where its template puts media, and what it can't take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.layouter import Layouter
from services.layout.shapes import MediaShape
from tests.unit.layout.families.reading import FOLDERS, clip, image, spans
from tests.unit.layout.golden import card, golden, layouter

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
VIDEO = {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}
NO_VIDEO = ["llava_1_5", "llava_next", "llama4", "kimi_k25"]
STRINGS = "{% for message in messages %}<|im_user|>{{ message.content }}<|im_end|>{% endfor %}"
"""A template that takes contents as strings."""


def chat(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": p} if isinstance(p, str) else p
                                                      for p in parts]}]}  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_two_images_with_text_between(name: str) -> None:
    model = layouter(FOLDERS[name])
    view = model.view(chat("one", IMAGE, "two", IMAGE, "what?"), [image(100, 300), image(640, 480)])
    assert (view.reason, view.exact_tokens) == (None, len(view.token_ids))
    assert [span.item for span in view.spans] == [0, 1]
    family = model.card.family
    assert family is not None
    assert view.variant == family.variant
    for span, size in zip(view.spans, ((100, 300), (640, 480)), strict=True):
        expected = family.expand(image(*size), model.encode)
        assert view.token_ids[span.offset : span.offset + span.length] == expected.token_ids


@pytest.mark.parametrize("name", FOLDERS)
def test_tokens_that_stand_in_media_only(name: str) -> None:
    model = layouter(FOLDERS[name])
    family = model.card.family
    assert family is not None
    for media, body in (([image(900, 700)], chat(IMAGE, "x")), ([clip(64, 96, [0, 5], 5.0)], chat(VIDEO, "x"))):
        if family.placeholder(media[0].kind) is None:
            continue
        view = model.view(body, media)
        ((start, length),) = spans(view)
        outside = view.token_ids[:start] + view.token_ids[start + length :]
        assert not family.media_tokens & set(outside)
        assert family.media_tokens & set(view.token_ids[start : start + length])


@pytest.mark.parametrize("name", [name for name in FOLDERS if name not in NO_VIDEO])
def test_a_video(name: str) -> None:
    view = layouter(FOLDERS[name]).view(chat(VIDEO, "what?"), [clip(64, 96, [0, 5, 10, 15], 5.0)])
    assert (view.reason, len(view.spans)) == (None, 1)


@pytest.mark.parametrize("name", NO_VIDEO)
def test_a_video_where_the_family_has_none_ends_exactness_before_its_message(name: str) -> None:
    body = chat("first")
    body["messages"] += [{"role": "assistant", "content": "yes"}, *chat(VIDEO, "what?")["messages"]]
    model = layouter(FOLDERS[name])
    found = model.view(body, [clip(64, 96, [0, 5], 5.0)])
    assert (found.reason, found.spans) == (Reason.UNSUPPORTED_MEDIA, [])
    assert "no layout of a video" in (found.detail or "")
    before = model.view({"messages": body["messages"][:1]}).token_ids
    if model.tokeniser.splits:  # a vocabulary whose prompts can't be cut proves nothing of a part
        assert found.exact_tokens > len(before) // 2


def test_kimi_in_a_template_of_strings_has_its_images_first() -> None:
    kimi = Layouter(replace(card("kimi-k2.5"), template=STRINGS, tool_template=STRINGS))
    body = chat("Analyze this image.", IMAGE)
    placeholder = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
    assert kimi.render(body) == f"<|im_user|>{placeholder}\nAnalyze this image.<|im_end|>"
    view = kimi.view(body, [image(480, 640)])
    (span,) = view.spans
    assert (view.reason, span.length) == (None, 414)


def test_a_video_in_a_template_of_strings_is_not_laid_out() -> None:
    kimi = Layouter(replace(card("kimi-k2.5"), template=STRINGS, tool_template=STRINGS))
    view = kimi.view(chat("see", VIDEO), [MediaShape(MediaKind.VIDEO, 64, 64)])
    assert view.reason is Reason.UNSUPPORTED_MEDIA


@pytest.mark.parametrize(
    "case", [case for case in golden("chat_render")["cases"] if case["model"].startswith("Llama 4")],
    ids=lambda case: str(case["case"]),
)  # fmt: skip
def test_llama_4_renders_as_in_the_reference(case: dict[str, Any]) -> None:
    assert layouter("llama-4").render({"messages": case["messages"]}) == case["prompt"]


@pytest.mark.parametrize("name", [name for name in FOLDERS if not name.startswith("qwen")])
def test_pixel_bounds_of_a_request_are_not_known_outside_qwen(name: str) -> None:
    body = {**chat(IMAGE, "x"), "mm_processor_kwargs": {"max_pixels": 1000}}
    view = layouter(FOLDERS[name]).view(body, [image(100, 100)])
    assert (view.reason, view.spans) == (Reason.MM_PROCESSOR_KWARGS, [])
    assert view.vision_tokens > 0, "an estimate all the same"
