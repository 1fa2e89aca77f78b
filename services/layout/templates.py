"""Chat templates, rendered as Hugging Face's transformers does: sandboxed, with the same options and filters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.layout.content_format import ContentFormat, content_format

MAX_RENDERED = 16 << 20
"""Characters of a rendered prompt."""

_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_TIME_OF_DAY = re.compile(r"%[-#]?[HIMSfpXcsTrR]")


class PromptError(Exception):
    """The template refuses the conversation, or rendering it broke a bound. An engine would answer with an error."""


class PromptTooLong(PromptError):
    """The rendered prompt is longer than any model takes."""


class TimeDependent(PromptError):
    """The template prints the time of day: two renderings differ."""


class ChatTemplate:
    """One compiled template. Thread-safe."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        """Raises PromptError when the source is no template."""
        self._special_tokens = dict(special_tokens or {})
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
        except (TemplateError, RecursionError) as error:
            raise PromptError(f"the chat template can't be compiled: {error}") from None
        self.content_format: ContentFormat = content_format(tree)
        self.knows_developer = '"developer"' in source or "'developer'" in source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        now: datetime | None = None,
        give_up: Callable[[], bool] = lambda: False,
        limit: int = MAX_RENDERED,
    ) -> str:
        """The prompt's text. ``give_up`` is asked between pieces of output; ``now`` feeds ``strftime_now``.

        Raises PromptError when the template raises, the text grows over ``limit`` characters or ``give_up`` says so.
        """
        final = ""
        if continue_final_message:
            messages, final = _tagged(messages)
        context: dict[str, Any] = {**self._special_tokens, **(variables or {})}
        context["strftime_now"] = _clock(now)
        context |= {
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._generate(context, give_up, limit)
        return _cut_at_tag(text, final) if continue_final_message else text

    def _generate(self, context: dict[str, Any], give_up: Callable[[], bool], limit: int) -> str:
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(context):
                pieces.append(piece)
                length += len(piece)
                if length > limit:
                    raise PromptTooLong(f"the rendered prompt has over {limit} characters")
                if give_up():
                    raise PromptError("rendering the chat template took too long")
        except PromptError:
            raise
        except RecursionError:
            raise PromptError("the messages are nested too deeply for the chat template") from None
        except Exception as error:  # templates fail in any way Python can
            raise PromptError(f"the chat template refused the messages: {error}"[:300]) from None
        return "".join(pieces)


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's words for training; here its body is only rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja's declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers does: jinja's own filter escapes HTML characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _clock(now: datetime | None) -> Callable[[str], str]:
    def strftime_now(form: str) -> str:
        if now is None or _TIME_OF_DAY.search(form):
            raise TimeDependent(f"the chat template prints the time ({form})")
        return now.strftime(form)

    return strftime_now


def _tagged(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], str]:
    """The messages with a tag after the last text of the last one, and that text."""
    if not messages or messages[-1].get("content") is None:
        raise PromptError("continue_final_message is set but the final message has no content to continue")
    content = messages[-1]["content"]
    if isinstance(content, str):
        return [*messages[:-1], {**messages[-1], "content": content + _CONTINUE_TAG}], content
    for index in range(len(content) - 1, -1, -1):
        part = content[index]
        if "text" in part:
            tagged = [*content[:index], {**part, "text": part["text"] + _CONTINUE_TAG}, *content[index + 1 :]]
            return [*messages[:-1], {**messages[-1], "content": tagged}], part["text"]
    raise PromptError("continue_final_message is set but the final message has no text to continue")


def _cut_at_tag(text: str, final: str) -> str:
    if final.strip() not in text or _CONTINUE_TAG.strip() not in text:
        raise PromptError("continue_final_message is set but the template drops the final message")
    place = text.rindex(_CONTINUE_TAG.strip())
    kept = text[:place]
    return kept if text.startswith(_CONTINUE_TAG, place) else kept.rstrip()
