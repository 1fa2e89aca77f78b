"""From a body to a view: exact as far as it can be proven, never further, whatever the request tries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.media import MediaItem, MediaKind
from services.kv.reason import Reason
from services.layout.card import CardError
from services.layout.layouter import Layouter
from services.layout.shapes import MediaShape
from services.layout.view import View
from tests.unit.layout.golden import card, layouter

QWEN = "qwen2.5-vl"
PAD, VISION_START, VIDEO_PAD = 151655, 151652, 151656
SMALL = MediaShape(MediaKind.IMAGE, 56, 56)
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
VIDEO = {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}


def chat(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **fields}


def view(body: dict[str, Any], *media: MediaShape, model: str = QWEN) -> View:
    return layouter(model).view(body, media)


def text_before(found: View, model: str = QWEN) -> str:
    decoder = layouter(model).tokeniser._tokenizer
    return str(decoder.decode(found.token_ids[: found.exact_tokens], skip_special_tokens=False))


class TestExact:
    def test_text(self) -> None:
        found = view({"messages": [{"role": "user", "content": "hello"}]})
        assert found.exact
        assert found.exact_tokens == found.prompt_tokens == len(found.token_ids) > 0
        assert text_before(found) == layouter(QWEN).render({"messages": [{"role": "user", "content": "hello"}]})

    def test_an_image_between_texts(self) -> None:
        found = view(chat("look:", IMAGE, "what?"), SMALL)
        assert found.exact
        (span,) = found.spans
        assert found.token_ids[span.offset : span.offset + span.length] == [PAD] * 4
        assert found.token_ids[span.offset - 1] == VISION_START
        assert (found.variant, found.vision_tokens) == ("qwen2_5_vl", 4)

    def test_a_repetition_is_the_same(self) -> None:
        once, again = (Layouter(card(QWEN), cache_tokens=1000).view(chat(IMAGE, "x"), [SMALL]) for _ in range(2))
        assert once == again == view(chat(IMAGE, "x"), SMALL)

    def test_tools_and_template_arguments_are_rendered(self) -> None:
        tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
        body = chat("hi", tools=tools, chat_template_kwargs={"enable_thinking": False})
        text = layouter("qwen3.5").render(body)
        assert '{"name": "weather", "description": null, "parameters": {"type": "object"}}' in text
        assert text.endswith("<think>\n\n</think>\n\n")
        assert view(body, model="qwen3.5").exact

    def test_reasoning_effort_switches_thinking_as_vllm_does(self) -> None:
        assert "</think>" in layouter("qwen3.5").render(chat("hi", reasoning_effort="none"))
        assert "</think>" not in layouter("qwen3.5").render(chat("hi", reasoning_effort="high"))
        kept = chat("hi", reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
        assert "</think>" not in layouter("qwen3.5").render(kept)

    def test_the_final_message_may_be_continued(self) -> None:
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Well,"}]
        body = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}
        assert layouter(QWEN).render(body).endswith("<|im_start|>assistant\nWell,")
        assert view(body).exact

    def test_a_template_that_takes_strings_gets_the_image_first(self) -> None:
        source = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
        plain = Layouter(replace(card(QWEN), template=source))
        found = plain.view(chat("look:", IMAGE, "what?"), [SMALL])
        assert found.exact
        text = "<|im_start|><|vision_start|>" + "<|image_pad|>" * 4 + "<|vision_end|>\nlook:\nwhat?"
        assert found.token_ids == plain.encode(text)

    def test_null_is_as_good_as_missing(self) -> None:
        nulls = dict.fromkeys(
            ["chat_template", "tools", "documents", "chat_template_kwargs", "mm_processor_kwargs", "media_io_kwargs",
             "add_generation_prompt", "continue_final_message", "reasoning_effort", "truncate_prompt_tokens"]
        )  # fmt: skip
        assert view(chat(IMAGE, **nulls), SMALL) == view(chat(IMAGE), SMALL)


class TestItemsThatAreNotExact:
    def test_exactness_ends_at_the_items_first_token_and_what_stands_before_counts(self) -> None:
        bad = replace(SMALL, reason=Reason.FETCH_FAILED, detail="404")
        found = view(chat(IMAGE, "then", IMAGE, "and", IMAGE), SMALL, bad, SMALL)
        assert (found.reason, found.detail) == (Reason.FETCH_FAILED, "404")
        assert [span.item for span in found.spans] == [0]
        assert text_before(found).endswith("then<|vision_start|>")
        assert len(found.token_ids) == found.prompt_tokens > found.exact_tokens, "a known size still gives the length"

    def test_the_first_reason_in_prompt_order_is_kept(self) -> None:
        shapes = [replace(SMALL, reason=reason) for reason in (Reason.TOO_LARGE, Reason.DECODE_FAILED)]
        assert view(chat(IMAGE, IMAGE), *shapes).reason is Reason.TOO_LARGE

    def test_a_video_of_this_version_cuts_where_its_pad_stands(self) -> None:
        found = view(chat("see", VIDEO), MediaShape(MediaKind.VIDEO, reason=Reason.UNSUPPORTED_MEDIA))
        assert found.reason is Reason.UNSUPPORTED_MEDIA
        assert text_before(found).endswith("see<|vision_start|>")

    def test_an_item_the_engine_cant_be_told_of_is_not_exact(self) -> None:
        def shape(**fields: Any) -> MediaShape:
            return MediaShape.of(MediaItem(kind=MediaKind.IMAGE, message=0, part=0, height=56, width=56, **fields))

        assert shape(identity=1, forward=True) == SMALL
        assert shape(identity=1).reason is Reason.IDENTITY_NOT_FORWARDABLE
        assert shape(forward=True).reason is Reason.IDENTITY_NOT_FORWARDABLE
        assert shape(identity=1, reason=Reason.TOO_LARGE).reason is Reason.TOO_LARGE

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"mm_processor_kwargs": {"max_pixels": 3136}}, Reason.MM_PROCESSOR_KWARGS),
            ({"mm_processor_kwargs": {"fps": 1}}, Reason.MM_PROCESSOR_KWARGS),
            ({"media_io_kwargs": {"image": {"x": 1}}}, Reason.MEDIA_IO_KWARGS),
            ({"media_io_kwargs": "?"}, Reason.MEDIA_IO_KWARGS),
            ({"media_io_kwargs": {"video": {"num_frames": 4}}}, None),
            ({"mm_processor_kwargs": {}}, None),
        ],
    )
    def test_a_request_that_changes_how_media_are_laid_out(self, fields: dict[str, Any], reason: Reason | None) -> None:
        found = view(chat("a", IMAGE, **fields), SMALL)
        assert found.reason is reason
        if reason:
            assert text_before(found).endswith("a<|vision_start|>")

    def test_other_frames_than_the_deployments_are_said_with_what_was_asked_for(self) -> None:
        """The sampling rule could take them; the name the engine then gives the video nobody else can tell."""
        video = MediaShape(MediaKind.VIDEO, 64, 64, frames=4, fps=2.0, frame_indices=(0, 1, 2, 3))
        for asked, named in (({"num_frames": 8, "fps": 1}, " (fps, num_frames)"), ({}, ""), (None, "")):
            found = view(chat("a", VIDEO, media_io_kwargs={"video": asked}), video)
            assert found.reason is Reason.MEDIA_IO_KWARGS
            assert f"media_io_kwargs for video{named}: the engine gives" in (found.detail or "")
        other = view(chat("a", VIDEO, media_io_kwargs={"image": {"num_frames": 8}}), video)
        assert other.reason is not Reason.MEDIA_IO_KWARGS

    def test_bounds_in_the_request_still_make_a_better_estimate(self) -> None:
        found = view(chat(IMAGE, mm_processor_kwargs={"min_pixels": 112 * 112}), SMALL)
        assert (found.reason, found.vision_tokens) == (Reason.MM_PROCESSOR_KWARGS, 16)


class TestTypedPlaceholders:
    TYPED = "<|vision_start|><|image_pad|><|vision_end|>"

    def test_one_beside_an_image_ends_exactness_at_the_first_of_both(self) -> None:
        for parts in ([self.TYPED, IMAGE], [IMAGE, self.TYPED], ["<|image_pad|>", IMAGE]):
            found = view(chat(*parts), SMALL)
            assert found.reason is Reason.PLACEHOLDER_MISMATCH
            assert found.spans == []
            assert PAD not in found.token_ids[: found.exact_tokens]
            assert found.token_ids[found.exact_tokens] == PAD

    def test_one_without_any_image(self) -> None:
        found = view(chat(self.TYPED))
        assert found.reason is Reason.PLACEHOLDER_MISMATCH
        assert text_before(found).endswith("<|vision_start|>")

    def test_one_of_another_kind_does_not_touch_media_before_it(self) -> None:
        found = view(chat(IMAGE, "<|video_pad|>"), SMALL)
        assert (found.reason, [span.item for span in found.spans]) == (Reason.PLACEHOLDER_MISMATCH, [0])
        assert found.token_ids[found.exact_tokens] == VIDEO_PAD

    def test_other_special_tokens_are_what_the_engine_takes_them_for(self) -> None:
        assert view(chat("<|vision_start|><|im_end|>")).exact

    def test_a_medium_the_template_drops(self) -> None:
        plain = Layouter(replace(card(QWEN), template="{% for m in messages %}{{ m.role }}{% endfor %}"))
        found = plain.view(chat(IMAGE), [SMALL])
        assert (found.reason, found.exact_tokens) == (Reason.PLACEHOLDER_MISMATCH, 0)

    def test_media_that_do_not_fit_the_messages(self) -> None:
        assert view(chat(IMAGE, IMAGE), SMALL).reason is Reason.PLACEHOLDER_MISMATCH
        assert view(chat("x"), SMALL).reason is None, "there is nothing to place"
        other_kind = view(chat("a", IMAGE), MediaShape(MediaKind.VIDEO, 56, 56))
        assert other_kind.reason is Reason.PLACEHOLDER_MISMATCH
        assert text_before(other_kind).endswith("a<|vision_start|>")


class TestUnknownMedia:
    def test_audio_leaves_the_messages_before_it(self) -> None:
        body = chat(IMAGE, "one")
        body["messages"] += [{"role": "user", "content": ["two", AUDIO]}, {"role": "user", "content": "three"}]
        found = view(body, SMALL, MediaShape(MediaKind.AUDIO))
        assert (found.reason, [span.item for span in found.spans]) == (Reason.AUDIO, [0])
        assert text_before(found).endswith("one<|im_end|>\n<|im_start|>")
        assert found.prompt_tokens > 1024

    def test_a_bad_image_before_it_comes_first(self) -> None:
        body = chat(IMAGE)
        body["messages"] += [{"role": "user", "content": [AUDIO]}]
        found = view(body, replace(SMALL, reason=Reason.TOO_LARGE), MediaShape(MediaKind.AUDIO))
        assert found.reason is Reason.TOO_LARGE

    def test_a_part_nobody_knows(self) -> None:
        known = MediaShape(MediaKind.OTHER, reason=Reason.CLIENT_UUID)
        assert view(chat({"type": "file"}), known).reason is Reason.CLIENT_UUID
        assert view(chat({"type": "file"}), MediaShape(MediaKind.OTHER)).reason is Reason.UNSUPPORTED_MEDIA

    def test_a_family_nobody_knows_is_exact_for_text(self) -> None:
        unknown = Layouter(replace(card(QWEN), family=None))
        assert unknown.view(chat("hello")).exact
        body = {"messages": [{"role": "user", "content": "first"}, *chat(IMAGE, "second")["messages"]]}
        found = unknown.view(body, [SMALL])
        assert found.reason is Reason.UNSUPPORTED_MODEL
        assert found.spans == []
        everything = unknown.view({"messages": body["messages"][:1]}).token_ids
        assert found.token_ids[: found.exact_tokens] == everything[: found.exact_tokens]


class TestPromptsNobodyFollows:
    @pytest.mark.parametrize(
        "fields",
        [
            {"chat_template": "{{ messages }}"},
            {"chat_template_kwargs": {"chat_template": "x"}},
            {"chat_template_kwargs": {"tools": []}},
            {"chat_template_kwargs": {"messages": []}},
            {"chat_template_kwargs": [1]},
            {"prompt_embeds": "AAAA"},
            {"prompt_token_ids": [1, 2]},
            {"truncate_prompt_tokens": 5},
            {"add_special_tokens": True},
            {"continue_final_message": True},
            {"add_generation_prompt": "yes"},
            {"documents": ["x"]},
            {"tools": []},
        ],
    )
    def test_nothing_is_exact_and_the_length_is_a_guess(self, fields: dict[str, Any]) -> None:
        found = view(chat("word " * 400, **fields))
        assert (found.reason, found.exact_tokens, found.token_ids) == (Reason.TEMPLATE_MISMATCH, 0, [])
        assert found.detail
        assert 300 < found.prompt_tokens < 1000

    @pytest.mark.parametrize("content", ["a\ud800", "\udfff"])
    def test_lone_surrogates(self, content: str) -> None:
        assert view(chat(content)).reason is Reason.TEMPLATE_MISMATCH

    def test_a_prompt_longer_than_any_the_model_takes(self) -> None:
        found = Layouter(replace(card(QWEN), max_model_len=10)).view(chat("word " * 200))
        assert (found.reason, found.exact_tokens, found.prompt_tokens) == (Reason.BUDGET_EXCEEDED, 0, 250)

    def test_nul_is_text(self) -> None:
        assert view(chat("a\x00b")).exact

    def test_deep_nesting_ends_in_a_reason(self) -> None:
        deep: Any = []
        for _ in range(10_000):
            deep = [deep]
        tools = [{"function": {"name": "f", "parameters": {"x": deep}}}]
        assert view(chat("x", tools=tools), model="qwen3.5").reason is Reason.TEMPLATE_MISMATCH
        assert view({"messages": deep}).reason is Reason.TEMPLATE_MISMATCH

    def test_what_the_template_refuses(self) -> None:
        body = {"messages": [{"role": "assistant", "content": "no question"}]}
        found = view(body, model="qwen3.5")
        assert (found.reason, found.exact_tokens) == (Reason.TEMPLATE_MISMATCH, 0)
        assert "No user query" in (found.detail or "")

    def test_a_model_without_a_template(self) -> None:
        bare = replace(card(QWEN), template=None, tool_template=None, text_reason=Reason.TEMPLATE_MISSING)
        found = Layouter(bare).view(chat("x"))
        assert (found.reason, found.exact_tokens) == (Reason.TEMPLATE_MISSING, 0)

    def test_a_model_whose_text_is_not_proven(self) -> None:
        unsure = replace(card(QWEN), text_reason=Reason.TEMPLATE_MISMATCH, text_detail="tokens differ")
        found = Layouter(unsure).view(chat(IMAGE), [SMALL])
        assert (found.reason, found.exact_tokens, found.spans) == (Reason.TEMPLATE_MISMATCH, 0, [])

    def test_a_template_that_is_none(self) -> None:
        with pytest.raises(CardError, match="can't be compiled"):
            Layouter(replace(card(QWEN), template="{% if"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["text", "image_url", "user"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "role", "content", "image_url", "uuid"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(messages=JSON, kwargs=JSON, media=st.lists(st.sampled_from([SMALL, MediaShape(MediaKind.AUDIO)]), max_size=2))
def test_rubbish_never_raises_and_never_claims_too_much(messages: Any, kwargs: Any, media: list[MediaShape]) -> None:
    found = view({"messages": messages, "chat_template_kwargs": kwargs}, *media)
    assert 0 <= found.exact_tokens <= len(found.token_ids) <= max(found.prompt_tokens, len(found.token_ids))
    assert (found.reason is None) <= (found.exact_tokens == len(found.token_ids))
    assert all(span.offset + span.length <= found.exact_tokens for span in found.spans)
