"""What a family of models has to say: which placeholder stands for a medium, and what the engine puts in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.shapes import MediaShape

Encode = Callable[[str], list[int]]
"""Token ids of a piece of text, tokenised on its own."""


class NotExact(Exception):
    """This medium can't be laid out for sure. ``reason`` says why; the text is for people."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Expansion:
    """What replaces a placeholder token: the whole range, and how many of its tokens the vision encoder fills."""

    token_ids: list[int]
    vision_tokens: int


class Family(Protocol):
    """The layout of one model: made by the registry from the model folder's own parameters."""

    @property
    def variant(self) -> str:
        """Name of the layout, compared with what the workers' probes proved."""
        ...

    def placeholder(self, kind: MediaKind) -> int | None:
        """Token id the chat template leaves for a medium of this kind, or None when the family knows no such media."""
        ...

    def placeholder_text(self, kind: MediaKind) -> str | None:
        """What an engine puts before the text when the template takes strings only."""
        ...

    def expand(self, shape: MediaShape, encode: Encode) -> Expansion:
        """What the engine puts in place of the placeholder. Raises NotExact."""
        ...

    def overridden(self, processor_kwargs: Mapping[str, Any]) -> Self:
        """The layout with a request's ``mm_processor_kwargs``. Raises NotExact for arguments it doesn't know."""
        ...
