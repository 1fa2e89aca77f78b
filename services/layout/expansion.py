"""Puts media into a tokenised prompt: every placeholder becomes what the engine puts in its place, as far as known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.families.family import Encode, Expansion, Family, NotExact
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
    growing = _Growing()
    for kind, detail in counts_differ.items():
        if kind not in {found for _, found in places}:
            growing.stop(Reason.PLACEHOLDER_MISMATCH, detail)
    start = 0
    for position, kind in places:
        growing.token_ids += token_ids[start:position]
        start = position + 1
        if kind in counts_differ:
            growing.stop(Reason.PLACEHOLDER_MISMATCH, counts_differ[kind])
        items = waiting[kind]
        if not items:
            growing.token_ids.append(token_ids[position])
            continue
        item, shape = items.pop(0)
        _place(growing, item, shape, token_ids[position], family, encode)
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


def _place(growing: _Growing, item: int, shape: MediaShape, placeholder: int, family: Family, encode: Encode) -> None:
    """Append a medium's range; what can't be laid out keeps its placeholder and is estimated."""
    expansion: Expansion | None = None
    if shape.reason is not None:
        growing.stop(shape.reason, shape.detail)
    try:
        expansion = family.expand(shape, encode)
    except NotExact as error:
        growing.stop(error.reason, str(error))
    if expansion is None:
        growing.token_ids.append(placeholder)
        growing.unknown_tokens += UNKNOWN_MEDIUM_TOKENS
        return
    if growing.cut is None:
        offset = len(growing.token_ids)
        growing.spans.append(ViewSpan(item, offset, len(expansion.token_ids), expansion.vision_tokens))
    growing.token_ids += expansion.token_ids
    growing.vision_tokens += expansion.vision_tokens


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
