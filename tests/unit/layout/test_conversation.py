"""Messages and tools become what vLLM 0.32 gives to a chat template."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.media import MediaKind
from services.layout.conversation import developer_as_system, media_kind, parse_messages, parse_tools
from services.layout.templates import PromptError

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


def placeholder(kind: MediaKind) -> str | None:
    return {MediaKind.IMAGE: "<img>", MediaKind.VIDEO: "<vid>"}.get(kind)


def lists(*messages: Any) -> list[dict[str, Any]]:
    return parse_messages(list(messages), "openai", placeholder).messages


def strings(*contents: Any) -> list[Any]:
    messages = [{"role": "user", "content": content} for content in contents]
    return [message["content"] for message in parse_messages(messages, "string", placeholder).messages]


class TestLists:
    def test_text_becomes_a_part_and_nothing_becomes_no_part(self) -> None:
        assert lists({"role": "user", "content": "hi"}) == [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]}
        ]
        assert lists({"role": "assistant"}, {"role": "user", "content": None})[1]["content"] == []

    def test_media_parts_lose_everything_but_their_kind(self) -> None:
        video = {"type": "video_url", "video_url": {"url": "x"}, "uuid": "u"}
        parts = lists({"role": "user", "content": [IMAGE, "and", video]})[0]["content"]
        assert parts == [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "video"}]

    def test_their_order_and_messages_are_kept(self) -> None:
        found = parse_messages(
            [{"role": "user", "content": [IMAGE]}, {"role": "user", "content": [{"type": "input_audio"}, IMAGE]}],
            "openai", placeholder,
        )  # fmt: skip
        assert [(part.kind, part.message) for part in found.media] == [
            (MediaKind.IMAGE, 0), (MediaKind.AUDIO, 1), (MediaKind.IMAGE, 1),
        ]  # fmt: skip

    def test_other_kinds_of_text(self) -> None:
        parts = [
            {"type": "input_text", "text": "a", "cache_control": {}},
            {"type": "refusal", "refusal": "b"},
            {"type": "thinking", "thinking": "c"},
            {"type": "text", "text": None},
            {"type": "tool_reference", "name": "f"},
        ]
        assert lists({"role": "user", "content": parts})[0]["content"] == [
            {"type": "text", "text": "a"},
            {"type": "text", "text": "b"},
            {"type": "text", "text": "c"},
            {"type": "tool_reference", "name": "f"},
        ]


class TestStrings:
    def test_texts_are_joined_by_lines(self) -> None:
        assert strings("hi", ["a", {"type": "text", "text": "b"}], None) == ["hi", "a\nb", ""]

    def test_placeholders_come_first_wherever_the_image_stood(self) -> None:
        assert strings([{"type": "text", "text": "Analyze this image."}, IMAGE, IMAGE]) == [
            "<img>\n<img>\nAnalyze this image."
        ]
        assert strings([IMAGE]) == ["<img>"]

    def test_one_that_the_text_holds_itself_stays_in_its_place(self) -> None:
        assert strings([{"type": "text", "text": "a <img> b"}, IMAGE]) == ["a <img> b"]
        with pytest.raises(PromptError, match="more <img> than there are media"):
            strings([{"type": "text", "text": "<img> <img>"}, IMAGE])


class TestRoles:
    def test_an_assistants_tool_calls_have_parsed_arguments(self) -> None:
        def arguments(value: Any) -> Any:
            call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": value}}
            (message,) = lists({"role": "assistant", "content": None, "tool_calls": [call]})
            assert call["function"] == {"name": "f", "arguments": value}, "the body stays as it was"
            return message["tool_calls"][0]["function"]["arguments"]

        assert arguments('{"b": 1, "a": "x"}') == {"b": 1, "a": "x"}
        assert arguments({"a": 1}) == {"a": 1}
        for bad in ("", None, "[]", "not json", "42", "[" * 100_000):
            assert arguments(bad) == {}

    def test_no_tool_calls_are_none(self) -> None:
        assert lists({"role": "assistant", "content": "x", "tool_calls": []}) == lists(
            {"role": "assistant", "content": "x"}
        )

    @pytest.mark.parametrize("call", ["x", {}, {"function": 1}, {"type": "custom", "function": {"name": "f"}}])
    def test_a_tool_call_that_is_none(self, call: Any) -> None:
        with pytest.raises(PromptError, match="tool call"):
            lists({"role": "assistant", "tool_calls": [call]})

    def test_reasoning_has_two_names(self) -> None:
        for name in ("reasoning", "reasoning_content"):
            (message,) = lists({"role": "assistant", "content": "x", name: "because"})
            assert message["reasoning"] == message["reasoning_content"] == "because"

    def test_a_tools_answer_is_plain_text(self) -> None:
        (message,) = lists({"role": "tool", "tool_call_id": "1", "content": ["a", {"type": "text", "text": "b"}]})
        assert message == {"role": "tool", "tool_call_id": "1", "content": "a\nb"}

    def test_names_pass_and_unknown_keys_do_not(self) -> None:
        (message,) = lists({"role": "user", "content": "x", "name": "ann", "weight": 1})
        assert message == {"role": "user", "content": [{"type": "text", "text": "x"}], "name": "ann"}

    def test_the_billing_line_of_a_system_prompt_is_dropped(self) -> None:
        header = "x-anthropic-billing-header: cch=1;"
        for content in (f"{header}\nBe terse.", [header, {"type": "text", "text": "Be terse."}]):
            (message,) = lists({"role": "system", "content": content})
            assert message["content"] == [{"type": "text", "text": "Be terse."}]

    def test_a_developer_is_a_system_where_templates_know_none(self) -> None:
        messages = lists(
            {"role": "system", "content": "a"}, {"role": "user", "content": "q"}, {"role": "developer", "content": "b"}
        )
        first = developer_as_system(messages)[0]
        assert (first["role"], first["content"]) == ("system", "a\n\nb")
        alone = lists({"role": "developer", "content": "b"}, {"role": "user", "content": "q"})
        assert [message["role"] for message in developer_as_system(alone)] == ["system", "user"]
        assert developer_as_system(messages[:2]) is not messages
        assert developer_as_system(messages[:2]) == messages[:2]


class TestTools:
    def test_they_are_dumped_as_the_engine_dumps_them(self) -> None:
        tools = [{"function": {"parameters": {"z": 1, "a": 2}, "name": "f", "extra": 1}, "more": 2}]
        assert parse_tools(tools) == [
            {"type": "function", "function": {"name": "f", "description": None, "parameters": {"z": 1, "a": 2}}}
        ]
        assert list(parse_tools(tools)[0]["function"]) == ["name", "description", "parameters"]  # type: ignore[index]
        assert parse_tools([{"function": {"name": "f", "strict": True}}])[0]["function"]["strict"] is True  # type: ignore[index]
        assert parse_tools(None) is None

    @pytest.mark.parametrize("tools", [[], {}, "f", [1], [{}], [{"function": {}}], [{"function": {"name": 1}}]])
    def test_what_is_no_tool(self, tools: Any) -> None:
        with pytest.raises(PromptError, match="tool"):
            parse_tools(tools)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("text", None),
        ({"type": "text", "text": "a"}, None),
        ({"image_url": "x"}, MediaKind.IMAGE),
        ({"type": "anything", "image_url": "x", "uuid": "u"}, MediaKind.IMAGE),
        ({"type": "image_url", "image_url": None, "uuid": "u"}, MediaKind.IMAGE),
        ({"type": "audio_url"}, MediaKind.AUDIO),
        ({"type": "image_embeds"}, MediaKind.OTHER),
        ({"type": "prompt_embeds"}, MediaKind.OTHER),
        ({"type": 7}, MediaKind.OTHER),
        ({}, MediaKind.OTHER),
        (7, MediaKind.OTHER),
    ],
)
def test_the_kind_of_a_part(part: Any, kind: MediaKind | None) -> None:
    assert media_kind(part) is kind


@pytest.mark.parametrize(
    "messages",
    [None, [], {}, "hi", [1], [None], [{}], [{"role": 1}], [{"role": "user", "content": 1}],
     [{"role": "user", "content": {"text": "x"}}], [{"role": "user", "content": [{"type": "text", "text": 1}]}],
     [{"role": "user", "content": [{"type": "thinking"}]}]],
)  # fmt: skip
def test_what_is_no_conversation(messages: Any) -> None:
    with pytest.raises(PromptError):
        parse_messages(messages, "openai", placeholder)
