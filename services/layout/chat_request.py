"""The fields of a chat body that change its prompt, read as an engine reads them (vLLM 0.32)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.conversation import parse_tools
from services.layout.templates import PromptError

UNKNOWN_PROMPT_FIELDS = {
    "chat_template": "the request brings its own chat template",
    "prompt_embeds": "the request brings prompt embeddings",
    "prompt_token_ids": "the request brings token ids",
    "truncate_prompt_tokens": "the request truncates its prompt",
    "add_special_tokens": "the request adds special tokens to the template's",
}
"""Fields that make a prompt the router doesn't follow: nothing of it is exact."""

_ENGINE_ARGUMENTS = {
    "chat_template", "tokenize", "messages", "conversation", "tools", "documents", "padding", "truncation",
    "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
    "strftime_now", "raise_exception",
}  # fmt: skip
_OVERRIDDEN = ("add_generation_prompt", "continue_final_message")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What goes into the template beside the messages."""

    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = field(default_factory=dict)


def parse_request(body: Mapping[str, Any]) -> ChatRequest:
    """Raises PromptError when the body holds what an engine refuses, or what makes an unknown prompt."""
    for name, meaning in UNKNOWN_PROMPT_FIELDS.items():
        if body.get(name):
            raise PromptError(meaning)
    generation, continuing = _flag(body, "add_generation_prompt", True), _flag(body, "continue_final_message", False)
    if continuing and generation:
        raise PromptError("continue_final_message and add_generation_prompt exclude each other")
    documents = body.get("documents")
    if documents is not None and not (isinstance(documents, list) and all(isinstance(d, dict) for d in documents)):
        raise PromptError("documents is no list of objects")
    return ChatRequest(
        tools=parse_tools(body.get("tools")),
        documents=documents,
        add_generation_prompt=generation,
        continue_final_message=continuing,
        variables=_variables(body),
    )


def media_reasons(body: Mapping[str, Any]) -> dict[MediaKind, tuple[Reason, str]]:
    """Kinds of media whose layout the request itself changes, and why they are not exact."""
    reasons: dict[MediaKind, tuple[Reason, str]] = {}
    io_kwargs = body.get("media_io_kwargs")
    if io_kwargs:
        named = io_kwargs if isinstance(io_kwargs, dict) else dict.fromkeys(map(str, MediaKind))
        reasons |= {
            kind: (Reason.MEDIA_IO_KWARGS, _io_detail(kind, named[str(kind)]))
            for kind in MediaKind
            if str(kind) in named
        }
    if body.get("mm_processor_kwargs"):
        detail = "the request sets mm_processor_kwargs"
        reasons |= dict.fromkeys(MediaKind, (Reason.MM_PROCESSOR_KWARGS, detail))
    return reasons


def _io_detail(kind: MediaKind, given: Any) -> str:
    """Frames by another rate or number could be taken here too, but an engine then names the medium by a hash of its
    uuid and the arguments: no event of its blocks would be known as ours.
    """
    what = f" ({', '.join(sorted(map(str, given)))})" if isinstance(given, dict) and given else ""
    return f"the request sets media_io_kwargs for {kind}{what}: the engine gives the medium a name of its own"[:200]


def _flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name, default)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise PromptError(f"{name} is {value!r}, expected true or false"[:200])
    return value


def _variables(body: Mapping[str, Any]) -> dict[str, Any]:
    """Template arguments of the request: ``chat_template_kwargs``, and what reasoning_effort says about thinking."""
    given = body.get("chat_template_kwargs") or {}
    if not isinstance(given, dict):
        raise PromptError("chat_template_kwargs is no object")
    forbidden = sorted(_ENGINE_ARGUMENTS & given.keys())
    if forbidden:
        raise PromptError(f"chat_template_kwargs sets {', '.join(forbidden)}")
    variables = {name: value for name, value in given.items() if value is not None and value != "auto"}
    for name in _OVERRIDDEN:
        variables.pop(name, None)
    effort = body.get("reasoning_effort")
    if effort is not None:
        if "enable_thinking" not in given:
            variables["enable_thinking"] = effort != "none"
        variables["reasoning_effort"] = effort
    return variables
