"""From a chat body to its routing view: template, tokens, media. The engine does the same; here it is done once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.card import CardError, ModelCard
from services.layout.chat_request import ChatRequest, media_reasons, parse_request
from services.layout.conversation import Conversation, developer_as_system, parse_messages
from services.layout.expansion import EXPANDED_KINDS, UNKNOWN_MEDIUM_TOKENS, expand
from services.layout.families.family import Family, NotExact
from services.layout.shapes import MediaShape
from services.layout.templates import MAX_RENDERED, ChatTemplate, PromptError, PromptTooLong
from services.layout.tokenise import Tokeniser
from services.layout.view import View

CHARS_PER_TOKEN = 4
"""For the estimated length of prompts that can't be rendered."""

MOST_CHARS_PER_TOKEN = 64
"""A prompt with more characters for each token the model takes is not tokenised: an engine would refuse it."""


class Layouter:
    """Lays out the requests of one model. Synchronous and thread-safe; keeps what it tokenised."""

    def __init__(
        self,
        card: ModelCard,
        *,
        cache_tokens: int = 0,
        now: Callable[[], datetime] = datetime.now,
        seconds: float = 5.0,
    ) -> None:
        """``cache_tokens`` bounds the remembered text pieces; ``seconds`` bounds one rendering.

        Raises CardError when the card's template is no template.
        """
        self.card = card
        self.tokeniser = Tokeniser.load(card.tokenizer_file, cache_tokens=cache_tokens)
        self._now = now
        self._seconds = seconds
        self._template = self._compile(card.template)
        same = card.tool_template == card.template
        self._tool_template = self._template if same else self._compile(card.tool_template)
        bound = card.max_model_len
        self._limit = MAX_RENDERED if bound is None else min(MAX_RENDERED, bound * MOST_CHARS_PER_TOKEN)
        self._known = tuple(
            kind for kind in EXPANDED_KINDS if card.family and card.family.placeholder(kind) is not None
        )

    @property
    def family(self) -> Family | None:
        """The card's."""
        return self.card.family

    def _compile(self, source: str | None) -> ChatTemplate | None:
        if source is None:
            return None
        try:
            return ChatTemplate(source, self.card.special_tokens)
        except PromptError as error:
            raise CardError(f"{self.card.folder}: {error}") from None

    def view(self, body: Mapping[str, Any], media: Sequence[MediaShape] = (), *, family: Family | None = None) -> View:
        """The routing view of an OpenAI chat body whose media have these shapes, in prompt order.

        ``family`` is the variant of the card's family that the workers have proven, if it is another than the card's.
        Never raises for a bad request: what can't be laid out is not exact, and the view says why.
        """
        try:
            return self._view(body, media, family or self.card.family)
        except PromptError as error:
            return self._nothing(body, media, error)

    def render(self, body: Mapping[str, Any]) -> str:
        """The prompt's text, one placeholder for each medium. Raises PromptError."""
        request = parse_request(body)
        template = self._template_for(request)
        return self._text(template, request, self._conversation(body, template).messages)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, no special tokens added. Raises ValueError for text that is not valid Unicode."""
        return self.tokeniser.encode(text)

    def _view(self, body: Mapping[str, Any], media: Sequence[MediaShape], family: Family | None) -> View:
        request = parse_request(body)
        template = self._template_for(request)
        conversation = self._conversation(body, template)
        shapes = self._shapes(body, conversation, media)
        if all(part.kind in self._known for part in conversation.media):
            token_ids = self._tokens(self._text(template, request, conversation.messages))
            view = self._expanded(token_ids, shapes, _overridden(family, body))
        else:
            view = self._before_unknown(template, request, conversation, shapes, family)
            view = replace(view, prompt_tokens=max(len(view.token_ids), estimate_tokens(body, media)))
        if self.card.text_reason is not None:
            return view.unproven(self.card.text_reason, self.card.text_detail)
        return view

    def _template_for(self, request: ChatRequest) -> ChatTemplate:
        template = self._template if request.tools is None else self._tool_template
        if template is None:
            raise PromptError(f"model {self.card.name} has no chat template")
        return template

    def _conversation(self, body: Mapping[str, Any], template: ChatTemplate) -> Conversation:
        family = self.card.family
        text_of = (lambda kind: None) if family is None else family.placeholder_text
        return parse_messages(body.get("messages"), template.content_format, text_of)

    def _text(self, template: ChatTemplate, request: ChatRequest, messages: list[dict[str, Any]]) -> str:
        deadline = time.monotonic() + self._seconds
        return template.render(
            messages if template.knows_developer else developer_as_system(messages),
            tools=request.tools,
            documents=request.documents,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            variables=request.variables,
            now=self._now(),
            give_up=lambda: time.monotonic() > deadline,
            limit=self._limit,
        )

    def _tokens(self, text: str) -> list[int]:
        try:
            return self.tokeniser.encode(text)
        except ValueError as error:
            raise PromptError(str(error)) from None

    def _expanded(self, token_ids: list[int], shapes: Sequence[MediaShape], family: Family | None) -> View:
        if family is not None:
            return expand(token_ids, shapes, family, self.tokeniser.encode)
        return View(token_ids, exact_tokens=len(token_ids), variant=self.card.variant, prompt_tokens=len(token_ids))

    def _shapes(
        self, body: Mapping[str, Any], conversation: Conversation, media: Sequence[MediaShape]
    ) -> list[MediaShape]:
        """The shapes with the reasons the request itself gives; none is exact when they don't fit the body's parts."""
        kinds = [part.kind for part in conversation.media]
        if len(kinds) != len(media):
            detail = f"the messages hold {len(kinds)} media, {len(media)} were resolved"
            return [MediaShape(kind, reason=Reason.PLACEHOLDER_MISMATCH, detail=detail) for kind in kinds]
        reasons = media_reasons(body)
        return [_with_reason(shape, kind, reasons.get(kind)) for shape, kind in zip(media, kinds, strict=True)]

    def _before_unknown(
        self,
        template: ChatTemplate,
        request: ChatRequest,
        conversation: Conversation,
        shapes: Sequence[MediaShape],
        family: Family | None,
    ) -> View:
        """Exact up to the content of the first message that holds a medium no layout is known for.

        Where the template puts such a medium is unknown, but what it puts before that message's content is what two
        renderings with different contents have in common.
        """
        hidden = {part.message for part in conversation.media if part.kind not in self._known}
        texts = [self._text(template, request, _with_content(conversation, hidden, mark)) for mark in "AB"]
        shared = texts[0][: _common_length(*texts)]
        token_ids = self._tokens(shared[: self.tokeniser.settled(shared)])
        before = [shape for part, shape in zip(conversation.media, shapes, strict=True) if part.message < min(hidden)]
        view = self._expanded(token_ids, before, family)
        if view.reason is not None:
            return view
        first = next(shape for shape in shapes if shape.kind not in self._known)
        reason, detail = self._why_unknown(first)
        return replace(view, reason=reason, detail=detail)

    def _why_unknown(self, shape: MediaShape) -> tuple[Reason, str | None]:
        if shape.reason is not None:
            return shape.reason, shape.detail
        if shape.kind is MediaKind.AUDIO:
            return Reason.AUDIO, "the prompt holds audio"
        if self.card.family is None:
            return self.card.media_reason or Reason.UNSUPPORTED_MODEL, self.card.media_detail
        if shape.kind is MediaKind.OTHER:
            return Reason.UNSUPPORTED_MEDIA, "the prompt holds a content part of unknown type"
        return Reason.UNSUPPORTED_MEDIA, f"no layout of a {shape.kind} is known for {self.card.variant}"

    def _nothing(self, body: Mapping[str, Any], media: Sequence[MediaShape], error: PromptError) -> View:
        reason = Reason.TEMPLATE_MISSING if self._template is None else Reason.TEMPLATE_MISMATCH
        if isinstance(error, PromptTooLong):
            reason = Reason.BUDGET_EXCEEDED
        detail = str(error)[:300]
        return View(
            [], reason=reason, detail=detail, variant=self.card.variant, prompt_tokens=estimate_tokens(body, media)
        )


def _overridden(family: Family | None, body: Mapping[str, Any]) -> Family | None:
    """The layout with the request's own bounds. Not exact, an engine may refuse them, but a better estimate."""
    given = body.get("mm_processor_kwargs")
    if family is None or not given or not isinstance(given, dict):
        return family
    try:
        return family.overridden(given)
    except NotExact:
        return family


def _with_reason(shape: MediaShape, kind: MediaKind, why: tuple[Reason, str] | None) -> MediaShape:
    """The shape of the part it belongs to, with the first reason there is: its own, or the request's."""
    if shape.reason is None and shape.kind is not kind:
        why = Reason.PLACEHOLDER_MISMATCH, f"the message holds a part of kind {kind}, {shape.kind} was resolved"
    if shape.reason is None and why is not None:
        return replace(shape, kind=kind, reason=why[0], detail=why[1])
    return shape if shape.kind is kind else replace(shape, kind=kind)


def _with_content(conversation: Conversation, hidden: set[int], mark: str) -> list[dict[str, Any]]:
    """The messages with a mark in place of some contents."""
    return [
        {**message, "content": mark if isinstance(message["content"], str) else [{"type": "text", "text": mark}]}
        if index in hidden
        else message
        for index, message in enumerate(conversation.messages)
    ]


def _common_length(one: str, other: str) -> int:
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))


def estimate_tokens(body: Mapping[str, Any], media: Sequence[MediaShape]) -> int:
    """Tokens of a prompt that can't be laid out, from its characters and media."""
    total = 0
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, dict) else part
            total += len(text) if isinstance(text, str) else 0
    return total // CHARS_PER_TOKEN + len(media) * UNKNOWN_MEDIUM_TOKENS
