"""Recorded chat requests of a running vLLM 0.32.0: the view has the token ids the engine said it saw."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.media import MediaKind
from services.layout.conversation import media_kind
from services.layout.layouter import Layouter
from services.layout.shapes import MediaShape
from tests.unit.layout.golden import card, recording

MODELS = {"q25vl_bs16": "qwen2.5-vl", "q3vl_bs16": "qwen3-vl"}
IMAGE = MediaShape(MediaKind.IMAGE, 168, 224)
SAMPLED = {"qwen2.5-vl": (0, 2, 4, 6), "qwen3-vl": (0, 2, 5, 7)}
"""Frames the loaders take of the recorded clip (8 frames, 4 a second)."""


def _cases(name: str) -> list[dict[str, Any]]:
    return [c for c in recording(name)["cases"] if c["path"] == "/v1/chat/completions" and c["status"] == 200]


def _shapes(messages: list[dict[str, Any]], model: str) -> list[MediaShape]:
    video = MediaShape(MediaKind.VIDEO, 112, 112, frame_indices=SAMPLED[model], fps=4.0)
    kinds = [media_kind(part) for m in messages for part in (m["content"] if isinstance(m["content"], list) else [])]
    return [IMAGE if kind is MediaKind.IMAGE else video for kind in kinds if kind is not None]


@pytest.mark.parametrize("name", MODELS)
def test_every_chat_request(name: str) -> None:
    engine = Layouter(card(MODELS[name]), cache_tokens=10_000)
    cases = _cases(name)
    assert len(cases) >= 25
    for case in cases:
        body = case["request"]
        found = engine.view(body, _shapes(body["messages"], MODELS[name]))
        assert found.token_ids == case["response"]["prompt_token_ids"], case["case"]
        assert found.exact is ("mm_processor_kwargs" not in body), case["case"]


def test_requests_to_tokenise_and_render_a_chat() -> None:
    engine = Layouter(card("qwen2.5-vl"))
    answers = {"/tokenize": "tokens", "/v1/chat/completions/render": "token_ids"}
    seen = 0
    for case in recording("q25vl_bs16")["cases"]:
        if case["path"] in answers and case["status"] == 200:
            body, expected = case["request"], case["response"][answers[case["path"]]]
            if "messages" in body:
                found = engine.view(body, _shapes(body["messages"], "qwen2.5-vl")).token_ids
            else:
                found = engine.encode(body["prompt"])
            assert found == expected, case["case"]
            seen += 1
    assert seen >= 5
