"""A processor's layouts as a family: what transformers puts in a medium's place, asked once for each size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.families.family import (
    MOST_TOKENS,
    NO_MARKERS,
    Encode,
    Expansion,
    Markers,
    NotExact,
    clip_of,
    refuse_overrides,
    size_of,
)
from services.layout.families.variants import PROCESSOR, UnknownVariant, named
from services.layout.processor.asked import Description, Medium, Placeholder
from services.layout.shapes import MediaShape

Ask = Callable[[Medium], list[int]]
"""Token ids in place of a medium; takes as long as the processor does. Raises NotExact."""


@dataclass(frozen=True)
class ProcessorFamily:
    """Layout of a model whose processor was described. ``digest`` stands for the folder's processor parameters.

    The name of the layout says the library's version, the processor and its parameters: workers that prove it have
    asked the very same processor.
    """

    described: Description
    digest: str
    ask: Ask

    @property
    def variant(self) -> str:
        """Such as ``processor/transformers-5.24.0/Qwen2_5_VLProcessor-1f00a2b4c6d8e0f1``."""
        described = self.described
        return named(PROCESSOR, f"transformers-{described.version}", f"{described.processor}-{self.digest}")

    @property
    def video_variant(self) -> str:
        """The same; empty for a processor without videos."""
        return self.variant if self.described.video is not None else ""

    def video_variants(self, pruning_rates: Sequence[float] = ()) -> tuple[str, ...]:
        """The one there is."""
        return (self.variant,) if self.described.video is not None else ()

    def chosen(self, image: str | None = None, video: str | None = None) -> Self:
        """The one layout there is. Raises UnknownVariant for any other."""
        for wanted in (image, video):
            if wanted not in (None, self.variant):
                raise UnknownVariant(f"workers proved the layout {wanted}, the processor here makes {self.variant}")
        return self

    def under(self, max_model_len: int | None) -> Self:
        """The same: processors know no engine."""
        return self

    def placeholder(self, kind: MediaKind) -> int | None:
        """What the processor replaces."""
        mark = self._mark(kind)
        return None if mark is None else mark.token

    def placeholder_text(self, kind: MediaKind) -> str | None:
        """What the processor replaces."""
        mark = self._mark(kind)
        return None if mark is None else mark.text

    @property
    def media_tokens(self) -> frozenset[int]:
        """Ids that stand for vision features."""
        marks = (self.described.image, self.described.video)
        return frozenset(token for mark in marks if mark is not None for token in mark.features)

    def markers(self, kind: MediaKind) -> Markers:
        """None: only the placeholder is replaced."""
        return NO_MARKERS

    def expand(self, shape: MediaShape, encode: Encode) -> Expansion:
        """What the processor puts in the placeholder's place. Raises NotExact."""
        mark = self._mark(shape.kind)
        if mark is None:
            raise NotExact(Reason.UNSUPPORTED_MEDIA, f"{self.described.processor} takes no {shape.kind}")
        return self._checked(self.ask(medium_of(shape)), mark)

    def unprovable(self, media: Sequence[MediaShape], side_by_side: bool) -> Mapping[int, NotExact]:
        """None: media are laid out each by itself, and no more of them than the probes covered."""
        return {}

    def overridden(self, processor_kwargs: Mapping[str, Any]) -> Self:
        """Raises NotExact for every argument: what an engine makes of it was not probed."""
        refuse_overrides(processor_kwargs)
        return self

    def _mark(self, kind: MediaKind) -> Placeholder | None:
        return {MediaKind.IMAGE: self.described.image, MediaKind.VIDEO: self.described.video}.get(kind)

    def _checked(self, said: object, mark: Placeholder) -> Expansion:
        """Raises NotExact for what can't stand in a prompt for sure.

        Engines tokenise what replaces a placeholder by itself, transformers within the text around it. Both come to
        the same only where a special token stands at each end.
        """
        token_ids = [token for token in said if type(token) is int and token >= 0] if isinstance(said, list) else []
        if not token_ids or token_ids != said:
            raise NotExact(Reason.PLACEHOLDER_MISMATCH, f"{self.described.processor} gave no token ids")
        if len(token_ids) > MOST_TOKENS:
            detail = f"the medium takes {len(token_ids)} tokens, expected at most {MOST_TOKENS}"
            raise NotExact(Reason.TOO_LARGE, detail)
        features = sum(map(token_ids.count, mark.features))
        if not features:
            raise NotExact(Reason.PLACEHOLDER_MISMATCH, f"{self.described.processor} put no vision tokens in the text")
        if not self.described.specials.issuperset((token_ids[0], token_ids[-1])):
            raise NotExact(
                Reason.PLACEHOLDER_MISMATCH,
                f"what {self.described.processor} puts in the text does not begin and end with a special token, so "
                "its tokens depend on the text around it",
            )
        return Expansion(token_ids, features)


def medium_of(shape: MediaShape) -> Medium:
    """What a processor is asked about a medium. Raises NotExact when too little is known of it."""
    try:
        height, width = size_of(shape)
    except ValueError as error:
        raise NotExact(Reason.UNSUPPORTED_MEDIA, str(error)) from None
    if shape.kind is not MediaKind.VIDEO:
        return Medium(str(shape.kind), height, width)
    indices, fps = clip_of(shape)
    if not indices:
        raise NotExact(Reason.UNSUPPORTED_MEDIA, "the video has no frames")
    return Medium(str(shape.kind), height, width, indices, fps)
