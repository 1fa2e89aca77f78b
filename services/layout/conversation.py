"""An OpenAI chat body as the chat template gets it: what an engine makes of messages, tools and template arguments.

The rules are those of vLLM 0.32 (renderers/chat_utils.py): every media part becomes ``{"type": "image"}`` or
``{"type": "video"}``, strings become lists of parts or lists become strings as the template wants, tool arguments are
parsed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.media import MediaKind
from services.layout.content_format import ContentFormat
from services.layout.templates import PromptError

PlaceholderText = Callable[[MediaKind], str | None]

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MEDIA_PARTS = {
    "image": MediaKind.IMAGE,
    "image_url": MediaKind.IMAGE,
    "video": MediaKind.VIDEO,
    "video_url": MediaKind.VIDEO,
    "audio": MediaKind.AUDIO,
    "audio_url": MediaKind.AUDIO,
    "audio_embeds": MediaKind.AUDIO,
    "input_audio": MediaKind.AUDIO,
}
_MEDIA_KEYS = ("image_url", "audio_embeds", "audio_url", "input_audio", "video_url")
_TOOL_REFERENCE = "tool_reference"
_BILLING_HEADER = "x-anthropic-billing-header"


@dataclass(frozen=True, slots=True)
class MediaPart:
    """A content part that is no text: its kind, and the message (in the conversation) that holds it."""

    kind: MediaKind
    message: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages for a template, and the media in them in prompt order."""

    messages: list[dict[str, Any]]
    media: list[MediaPart] = field(default_factory=list)


def media_kind(part: Any) -> MediaKind | None:
    """The kind of medium a content part carries, None for text."""
    if isinstance(part, str):
        return None
    if not isinstance(part, dict):
        return MediaKind.OTHER
    kind = part.get("type")
    if kind is None or part.get("uuid") is not None:
        key = next((key for key in _MEDIA_KEYS if key in part), None)
        if key is not None:
            return _MEDIA_PARTS[key]
    if not isinstance(kind, str):
        return MediaKind.OTHER
    return None if kind in _TEXT_PARTS or kind == _TOOL_REFERENCE else _MEDIA_PARTS.get(kind, MediaKind.OTHER)


def parse_messages(messages: Any, wanted: ContentFormat, placeholder_text: PlaceholderText) -> Conversation:
    """The conversation of a body's ``messages``. Raises PromptError for what an engine refuses."""
    if not isinstance(messages, list) or not messages:
        raise PromptError("messages is no list with at least one message")
    parsed: list[dict[str, Any]] = []
    media: list[MediaPart] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise PromptError(f"message {index} is no object with a role")
        parts, kinds = _parts(message, index)
        media += [MediaPart(kind, index) for kind in kinds]
        content = parts if wanted == "openai" else _joined(parts, placeholder_text)
        parsed.append(_message(message, content))
    return Conversation(parsed, media)


def parse_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Tools as the engine dumps them: declared fields only, in its order, missing description and parameters null."""
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise PromptError("tools is no list with at least one tool")
    result = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise PromptError("a tool has no function with a name")
        dumped = {key: function.get(key) for key in ("name", "description", "parameters")}
        dumped |= {key: function[key] for key in ("strict", "defer_loading") if function.get(key) is not None}
        result.append({"type": tool.get("type", "function"), "function": dumped})
    return result


def developer_as_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For templates that don't know the role ``developer``: it becomes ``system``, and all system text comes first."""
    if not any(message["role"] == "developer" for message in messages):
        return messages
    messages = [
        {**message, "role": "system", "tools": None} if message["role"] == "developer" else message
        for message in messages
    ]
    system = [message for message in messages if message["role"] == "system"]
    if len(system) == 1 and messages[0]["role"] == "system":
        return messages
    texts = [text for message in system if (text := _plain(message["content"]))]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _parts(message: Mapping[str, Any], index: int) -> tuple[list[dict[str, Any]], list[MediaKind]]:
    content = message.get("content")
    if content is None:
        content = []
    elif isinstance(content, str):
        content = [content]
    elif not isinstance(content, list):
        raise PromptError(f"the content of message {index} is neither text nor a list of parts")
    parts: list[dict[str, Any]] = []
    kinds: list[MediaKind] = []
    for part in content:
        kind = media_kind(part)
        if kind is not None:
            kinds.append(kind)
            parts.append({"type": str(kind)})
            continue
        text = _text(part, index)
        if text is not None and message["role"] == "system" and text.startswith(_BILLING_HEADER):
            text = text.partition("\n")[2] or None
        if text is None:
            continue
        named = isinstance(part, dict) and part["type"] == _TOOL_REFERENCE
        parts.append({"type": _TOOL_REFERENCE, "name": text} if named else {"type": "text", "text": text})
    return parts, kinds


def _text(part: Any, index: int) -> str | None:
    """The text of a part that is no medium; None for one the engine skips."""
    if isinstance(part, str):
        return part
    text = part.get(_TEXT_PARTS.get(part["type"], "name"))
    if text is None and part["type"] in ("text", "refusal"):
        return None
    if not isinstance(text, str):
        raise PromptError(f"a text part of message {index} holds no text")
    return text


def _joined(parts: list[dict[str, Any]], placeholder_text: PlaceholderText) -> str:
    """For templates that take strings: placeholders that the text does not hold itself come first, a line each."""
    text = "\n".join(part["text"] if part["type"] == "text" else part["name"] for part in parts if len(part) > 1)
    counts: dict[str, int] = {}
    for part in parts:
        if len(part) == 1:
            placeholder = placeholder_text(MediaKind(part["type"]))
            if placeholder is not None:
                counts[placeholder] = counts.get(placeholder, 0) + 1
    lines: list[str] = []
    for placeholder, count in counts.items():
        missing = count - text.count(placeholder)
        if missing < 0:
            raise PromptError(f"the text holds more {placeholder} than there are media")
        lines += [placeholder] * missing
    return "\n".join([*lines, text] if text else lines)


def _message(message: Mapping[str, Any], content: Any) -> dict[str, Any]:
    role = message["role"]
    parsed: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant":
        calls = message.get("tool_calls")
        if calls:
            parsed["tool_calls"] = [_tool_call(call) for call in calls]
        reasoning = message.get("reasoning")
        if reasoning is None:
            reasoning = message.get("reasoning_content")
        if reasoning is not None:
            parsed["reasoning"] = parsed["reasoning_content"] = reasoning
    elif role == "tool":
        if "tool_call_id" in message:
            parsed["tool_call_id"] = message["tool_call_id"]
        if isinstance(content, list) and all(part["type"] == "text" for part in content):
            parsed["content"] = "\n".join(part["text"] for part in content)
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            parsed[key] = message[key]
    if role == "developer":
        parsed["tools"] = message.get("tools")
    return parsed


def _tool_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise PromptError("an assistant's tool call is no object of type function")
    arguments = function.get("arguments")
    if isinstance(arguments, str) and arguments:
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = {}
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}


def _plain(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)
