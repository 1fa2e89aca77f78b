"""What a family of models has to say: which placeholder stands for a medium, and what the engine puts in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class Markers:
    """Tokens around a placeholder that the engine replaces together with it."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


NO_MARKERS = Markers()

MOST_TOKENS = 1 << 20
"""Of one medium."""


class Family(Protocol):
    """The layout of one model: made by the registry from the model folder's own parameters."""

    @property
    def variant(self) -> str:
        """Name of the layout of images, compared with what the workers' probes proved."""
        ...

    @property
    def video_variant(self) -> str:
        """Name of the layout of videos; empty for a family without."""
        ...

    def video_variants(self, pruning_rates: Sequence[float] = ()) -> tuple[str, ...]:
        """Layouts of videos that engine versions and flags make of this model: what a worker's probes choose from.

        ``pruning_rates`` are those to be considered, each over 0 and under 1.
        """
        ...

    def chosen(self, image: str | None = None, video: str | None = None) -> Self:
        """The layout under the variants a worker's contract names; None leaves one as it is. Raises UnknownVariant."""
        ...

    def under(self, max_model_len: int | None) -> Self:
        """The layout in an engine that takes this many tokens; None if it does not say."""
        ...

    def placeholder(self, kind: MediaKind) -> int | None:
        """Token id the chat template leaves for a medium of this kind, or None when the family knows no such media."""
        ...

    def placeholder_text(self, kind: MediaKind) -> str | None:
        """What an engine puts before the text when the template takes strings only."""
        ...

    @property
    def media_tokens(self) -> frozenset[int]:
        """Ids that stand in the range of a medium and nowhere else: a block with one of them holds a medium."""
        ...

    def markers(self, kind: MediaKind) -> Markers:
        """Tokens that are replaced together with the placeholder of this kind."""
        ...

    def expand(self, shape: MediaShape, encode: Encode) -> Expansion:
        """What the engine puts in place of the placeholder. Raises NotExact."""
        ...

    def unprovable(self, media: Sequence[MediaShape], side_by_side: bool) -> Mapping[int, NotExact]:
        """Media that can't be laid out for sure because of what else is in the prompt, by their index in ``media``.

        ``side_by_side``: two videos stand in the prompt without text between them.
        """
        ...

    def overridden(self, processor_kwargs: Mapping[str, Any]) -> Self:
        """The layout with a request's ``mm_processor_kwargs``. Raises NotExact for arguments it doesn't know."""
        ...


def run(token_id: int, tokens: int) -> list[int]:
    """Vision tokens of a medium. Raises NotExact for more than any model takes, before memory is taken for them."""
    if tokens > MOST_TOKENS:
        raise NotExact(Reason.TOO_LARGE, f"the medium takes {tokens} tokens, expected at most {MOST_TOKENS}")
    return [token_id] * tokens


def size_of(shape: MediaShape) -> tuple[int, int]:
    """Height and width. Raises NotExact when they are unknown, ValueError when they are not positive."""
    if shape.height is None or shape.width is None:
        raise NotExact(Reason.UNSUPPORTED_MEDIA, f"the size of the {shape.kind} is unknown")
    if shape.height <= 0 or shape.width <= 0:
        raise ValueError(f"size is {shape.height}x{shape.width}, expected positive sides")
    return shape.height, shape.width


def clip_of(shape: MediaShape) -> tuple[tuple[int, ...], float]:
    """Indices of the sampled frames and the source's frame rate. Raises NotExact when they are unknown."""
    if shape.frame_indices is None or shape.fps is None:
        raise NotExact(Reason.UNSUPPORTED_MEDIA, "the sampled frames and the source's frame rate are unknown")
    return shape.frame_indices, shape.fps


def refuse_overrides(processor_kwargs: Mapping[str, Any]) -> None:
    """For layouts that know no request's arguments to the processor. Raises NotExact naming them, if there are any."""
    if processor_kwargs:
        names = ", ".join(sorted(processor_kwargs))
        raise NotExact(Reason.MM_PROCESSOR_KWARGS, f"mm_processor_kwargs sets {names}"[:200])
