"""The routing view: a prompt's tokens as the worker's model sees them, and how far that is proven."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from services.kv.reason import Reason


@dataclass(frozen=True, slots=True)
class ViewSpan:
    """A medium's whole placeholder range: tokens ``[offset, offset + length)``.

    ``vision_tokens`` of them are filled by the vision encoder; the rest is text inside the range (timestamps).
    """

    item: int
    offset: int
    length: int
    vision_tokens: int


@dataclass(frozen=True, slots=True)
class View:
    """Tokens of the prompt with media expanded.

    The first ``exact_tokens`` tokens are proven; ``spans`` are the media that lie in them. ``reason`` is the first
    cause, in prompt order, that ended exactness, or None when all of the prompt is exact. ``prompt_tokens`` is the
    length of the whole prompt, an estimate after the cut; ``vision_tokens`` counts what the vision encoder fills, of
    all media whose size is known.
    """

    token_ids: list[int]
    spans: list[ViewSpan] = field(default_factory=list)
    exact_tokens: int = 0
    reason: Reason | None = None
    detail: str | None = None
    variant: str = ""
    prompt_tokens: int = 0
    vision_tokens: int = 0

    @property
    def exact(self) -> bool:
        """Whether the whole prompt is proven."""
        return self.reason is None

    def unproven(self, reason: Reason, detail: str | None) -> View:
        """The same tokens with nothing proven: the cause lies before the first of them."""
        return replace(self, spans=[], exact_tokens=0, reason=reason, detail=detail)
