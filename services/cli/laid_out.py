"""A medium's token layout for ``kvroute inspect``: what stands in its place in the prompt, run-length encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from schemas.media import MediaItem, MediaKind
from services.layout.layouter import Layouter
from services.layout.shapes import MediaShape

_QUESTION = "What is this?"


@dataclass(frozen=True, slots=True)
class Run:
    """The same token several times in a row."""

    token: int
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class Laid:
    """Where the medium stands in a prompt of its own, and its tokens; or why that is not known."""

    variant: str
    offset: int | None = None
    length: int | None = None
    vision_tokens: int | None = None
    prompt_tokens: int = 0
    reason: str | None = None
    detail: str | None = None
    runs: list[Run] = field(default_factory=list)


def lay_alone(layouter: Layouter, item: MediaItem) -> Laid:
    """The layout of a chat that holds the medium and a short question."""
    kind = f"{item.kind}_url"
    content: list[dict[str, Any]] = [{"type": kind, kind: {"url": "data:,"}}, {"type": "text", "text": _QUESTION}]
    body = {"model": layouter.card.name, "messages": [{"role": "user", "content": content}]}
    view = layouter.view(body, [MediaShape.of(item)])
    family = layouter.card.family
    variant = "" if family is None else family.video_variant if item.kind is MediaKind.VIDEO else family.variant
    if view.reason is not None or not view.spans:
        return Laid(variant or layouter.card.variant, prompt_tokens=view.prompt_tokens, reason=view.reason,
                    detail=view.detail)  # fmt: skip
    span = view.spans[0]
    tokens = view.token_ids[span.offset : span.offset + span.length]
    runs = _runs(tokens, layouter.tokeniser.text)
    return Laid(variant, span.offset, span.length, span.vision_tokens, view.prompt_tokens, runs=runs)


def _runs(tokens: Sequence[int], text: Callable[[int], str]) -> list[Run]:
    return [Run(token, sum(1 for _ in same), text(token)) for token, same in groupby(tokens)]


def line_of(runs: Sequence[Run], limit: int = 60) -> str:
    """Runs on a line: ``<|vision_start|> <|image_pad|>×352 …``."""
    shown = [run.text if run.count == 1 else f"{run.text}×{run.count}" for run in runs[:limit]]
    return " ".join(shown) + (f" … and {len(runs) - limit} more runs" if len(runs) > limit else "")
