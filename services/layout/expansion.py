"""Puts media into a tokenised prompt: every placeholder becomes what the engine puts in its place, as far as known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.families.family import Encode, Expansion, Family, Markers, NotExact
from services.layout.shapes import MediaShape
from services.layout.view import View, ViewSpan

UNKNOWN_MEDIUM_TOKENS = 1024
"""What a medium of unknown size is taken to cost, for the prompt's estimated length only."""

EXPANDED_KINDS = (MediaKind.IMAGE, MediaKind.VIDEO)


@dataclass(slots=True)
class _Growing:
    token_ids: list[int] = field(default_factory=list)
    spans: list[ViewSpan] = field(default_factory=list)
    cut: int | None = None
    reason: Reason | None = None
    detail: str | None = None
    unknown_tokens: int = 0
    vision_tokens: int = 0

    def stop(self, reason: Reason, detail: str | None) -> None:
        """Exactness ends here, unless it ended before."""
        if self.cut is None:
            self.cut, self.reason, self.detail = len(self.token_ids), reason, detail


def expand(token_ids: list[int], media: Sequence[MediaShape], family: Family, encode: Encode) -> View:
    """The view of a tokenised prompt with one placeholder token for each medium.

    The engine replaces the n-th placeholder of a kind by the n-th medium of that kind. If their numbers differ (a
    placeholder typed as text, a medium the template dropped), exactness ends at the first placeholder of that kind,
    or at the start where there is none. An item that can't be laid out ends it at its first token.
    """
    places = _placeholders(token_ids, family)
    waiting, counts_differ = _match(places, media)
    unprovable = family.unprovable(media, _side_by_side(token_ids, places, encode))
    growing = _Growing()
    for kind, detail in counts_differ.items():
        if kind not in {found for _, found in places}:
            growing.stop(Reason.PLACEHOLDER_MISMATCH, detail)
    start = 0
    for position, kind in places:
        first, end = _replaced(token_ids, start, position, family.markers(kind))
        growing.token_ids += token_ids[start:first]
        if kind in counts_differ:
            growing.stop(Reason.PLACEHOLDER_MISMATCH, counts_differ[kind])
        expansion: Expansion | None = None
        if waiting[kind]:
            item, shape = waiting[kind].pop(0)
            expansion = _laid_out(growing, shape, unprovable.get(item), family, encode)
            if end <= position:
                growing.stop(Reason.PLACEHOLDER_MISMATCH, f"the {kind} placeholder does not stand between its markers")
        if expansion is None or end <= position:
            growing.token_ids += token_ids[first : position + 1]
            start = position + 1
            continue
        if growing.cut is None:
            offset = len(growing.token_ids)
            growing.spans.append(ViewSpan(item, offset, len(expansion.token_ids), expansion.vision_tokens))
        growing.token_ids += expansion.token_ids
        growing.vision_tokens += expansion.vision_tokens
        start = end
    growing.token_ids += token_ids[start:]
    exact = len(growing.token_ids) if growing.cut is None else growing.cut
    return View(
        token_ids=growing.token_ids,
        spans=growing.spans,
        exact_tokens=exact,
        reason=growing.reason,
        detail=growing.detail,
        variant=family.variant,
        prompt_tokens=len(growing.token_ids) + growing.unknown_tokens,
        vision_tokens=growing.vision_tokens,
    )


def _laid_out(
    growing: _Growing, shape: MediaShape, why: NotExact | None, family: Family, encode: Encode
) -> Expansion | None:
    """A medium's range. What is not proven ends exactness here; what can't be laid out at all is estimated."""
    if shape.reason is not None:
        growing.stop(shape.reason, shape.detail)
    if why is not None:
        growing.stop(why.reason, str(why))
    try:
        return family.expand(shape, encode)
    except NotExact as error:
        growing.stop(error.reason, str(error))
        growing.unknown_tokens += UNKNOWN_MEDIUM_TOKENS
        return None


def _replaced(token_ids: list[int], start: int, position: int, markers: Markers) -> tuple[int, int]:
    """What a medium replaces: the placeholder with its markers; an empty range there if they are missing."""
    first, end = position - len(markers.before), position + 1 + len(markers.after)
    before, after = token_ids[max(first, 0) : position], token_ids[position + 1 : end]
    if first >= start and before == list(markers.before) and after == list(markers.after):
        return first, end
    return position, position


def _side_by_side(token_ids: list[int], places: list[tuple[int, MediaKind]], encode: Encode) -> bool:
    """Whether two videos stand in the prompt without text between them, a line break aside."""
    pairs = [
        (one[0], other[0])
        for one, other in pairwise(places)
        if one[1] is MediaKind.VIDEO and other[1] is MediaKind.VIDEO
    ]
    return any(token_ids[one + 1 : other] in ([], encode("\n")) for one, other in pairs)


def _match(
    places: list[tuple[int, MediaKind]], media: Sequence[MediaShape]
) -> tuple[dict[MediaKind, list[tuple[int, MediaShape]]], dict[MediaKind, str]]:
    waiting: dict[MediaKind, list[tuple[int, MediaShape]]] = {kind: [] for kind in EXPANDED_KINDS}
    for item, shape in enumerate(media):
        if shape.kind in waiting:
            waiting[shape.kind].append((item, shape))
    differ: dict[MediaKind, str] = {}
    for kind, items in waiting.items():
        found = sum(place[1] is kind for place in places)
        if found != len(items):
            differ[kind] = f"the prompt has {found} {kind} placeholders for {len(items)} {kind}s"
    return waiting, differ


def _placeholders(token_ids: list[int], family: Family) -> list[tuple[int, MediaKind]]:
    found: list[tuple[int, MediaKind]] = []
    for kind in EXPANDED_KINDS:
        placeholder = family.placeholder(kind)
        if placeholder is None:
            continue
        position = -1
        for _ in range(token_ids.count(placeholder)):
            position = token_ids.index(placeholder, position + 1)
            found.append((position, kind))
    return sorted(found)
