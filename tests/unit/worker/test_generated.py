"""Chats as requests to generate what was rendered, and generated text as answers to chats."""

from __future__ import annotations

from typing import Any

import pytest

from services.worker.generated import ChatHead, generate_body, identifiers
from tests.unit.layout.golden import recording

NAMES = {"image": ["u1", "u2"]}
HEAD = ChatHead("chatcmpl-1", "m", 7)


def chat(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": list(parts)}], **more}


def image(uuid: Any = "u1") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "x"}, "uuid": uuid}


TEXT = {"type": "text", "text": "a"}


def test_media_are_called_by_their_uuids_in_prompt_order() -> None:
    video = {"type": "video_url", "video_url": {"url": "x"}, "uuid": "v"}
    found = identifiers(chat(TEXT, image("u1"), video, image("u2"), "text"))
    assert found == {"image": ["u1", "u2"], "video": ["v"]}


@pytest.mark.parametrize(
    "body",
    [
        chat(TEXT), chat(image(None)), chat(image("")), chat(image(), image(None)),
        chat(image(), {"type": "input_audio"}), chat(image(), tools=[{}]), chat(image(), logprobs=True),
        chat(image(), n=2), chat(image(), return_token_ids=True),
        chat(image(), stream_options={"continuous_usage_stats": True}), {"messages": "x"}, {},
    ],
)  # fmt: skip
def test_chats_that_go_the_usual_way(body: dict[str, Any]) -> None:
    assert identifiers(body) is None


def rendering(**more: Any) -> dict[str, Any]:
    features = {
        "mm_hashes": {"image": ["a", "b"]}, "mm_placeholders": {"image": [{}, {}]},
        "kwargs_data": {"image": ["x", "y"]}, "mm_metadata": {"image": ["x", "y"]},
    }  # fmt: skip
    return {"token_ids": [1], "features": features, "sampling_params": {"max_tokens": 3}, "cache_salt": None, **more}


def test_a_rendering_is_generated_under_our_names() -> None:
    sent = generate_body(rendering(), NAMES, {"stream": True, "cache_salt": "s"})
    assert sent is not None
    assert sent["features"] == {
        "mm_hashes": NAMES, "mm_placeholders": {"image": [{}, {}]}, "kwargs_data": {"image": ["x", "y"]},
        "mm_metadata": None,
    }  # fmt: skip
    assert (sent["output_mode"], sent["stream"], sent["stream_options"], sent["cache_salt"]) == (
        "text", True, {"include_usage": True}, "s",
    )  # fmt: skip
    plain = generate_body(rendering(), NAMES, {})
    assert plain is not None
    assert (plain["stream"], plain["stream_options"], plain["sampling_params"]) == (False, None, {"max_tokens": 3})


def without(**changed: Any) -> dict[str, Any]:
    said = rendering()
    return {**said, "features": {**said["features"], **changed}}


@pytest.mark.parametrize(
    "said",
    [
        None, {}, rendering(features=None), rendering(reasoning_parser_kwargs={}), without(mm_hashes={"image": ["a"]}),
        without(mm_hashes={"video": ["a", "b"]}), without(mm_hashes=None), without(kwargs_data=None),
        without(kwargs_data={"image": ["x", None]}), without(kwargs_data={"image": ["x"]}),
    ],
)  # fmt: skip
def test_a_rendering_that_does_not_fit_is_not_generated(said: Any) -> None:
    assert generate_body(said, NAMES, {}) is None


def test_a_recorded_rendering_of_a_real_engine_fits() -> None:
    cases = recording("q25vl_bs16")["cases"]
    said = next(case["response"] for case in cases if str(case.get("endpoint", case.get("path"))).endswith("/render"))
    sent = generate_body(said, {"image": ["ours"]}, {})
    assert sent is not None
    assert sent["features"]["mm_hashes"] == {"image": ["ours"]}
    assert sent.keys() == said.keys() | {"output_mode"}


def choice(**more: Any) -> dict[str, Any]:
    return {"index": 0, "text": "hi", "finish_reason": "stop", "stop_reason": None, "token_ids": [1], **more}


def test_an_answer_is_a_chat_completion() -> None:
    found = HEAD.whole({"choices": [choice()], "usage": {"prompt_tokens": 3}})
    assert found == {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m", "usage": {"prompt_tokens": 3},
        "choices": [{
            "index": 0, "message": {"role": "assistant", "content": "hi", "refusal": None}, "logprobs": None,
            "finish_reason": "stop", "stop_reason": None,
        }],
    }  # fmt: skip


def test_a_stream_is_chunks_of_one() -> None:
    opening, piece = HEAD.opening(), HEAD.piece({"choices": [choice(finish_reason=None)], "usage": None})
    end, usage = HEAD.piece({"choices": [choice()]}), HEAD.piece({"choices": [], "usage": {"prompt_tokens": 3}})
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert piece["choices"] == [{"index": 0, "delta": {"content": "hi"}, "logprobs": None, "finish_reason": None}]
    assert (end["choices"][0]["finish_reason"], "usage" in end) == ("stop", False)
    assert (usage["choices"], usage["usage"]) == ([], {"prompt_tokens": 3})
    assert HEAD.piece({"error": {"code": 500}}) == {"error": {"code": 500}}


@pytest.mark.parametrize("answer", [{}, {"choices": None}, {"choices": [{}]}, {"choices": [None]}])
def test_what_is_no_generated_text_is_noticed(answer: Any) -> None:
    for read in (HEAD.whole, HEAD.piece):
        with pytest.raises((KeyError, TypeError)):
            read(answer)
