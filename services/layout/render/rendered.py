"""What an engine's render endpoint says, checked, and the view that follows. Pure.

The wire form is that of vLLM 0.32 (``--enable-scale-out``): ``token_ids``, and in ``features`` by modality
``mm_hashes`` and ``mm_placeholders``, both in prompt order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.shapes import MediaShape
from services.layout.view import View, ViewSpan

MOST_TOKENS = 1 << 22
"""Of one prompt."""


class NotRendered(Exception):
    """The engine said nothing usable. ``reason`` says why the prompt is not exact."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Place:
    """A medium's whole range in the prompt: tokens ``[offset, offset + length)``."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """A chat as an engine lays it out: its tokens, and by kind the media's places in prompt order."""

    token_ids: list[int]
    places: Mapping[MediaKind, Sequence[Place]] = field(default_factory=dict)

    @classmethod
    def read(cls, answer: Any) -> Rendered:
        """From the endpoint's answer. Raises NotRendered for one that contradicts itself."""
        if not isinstance(answer, dict) or not _are_tokens(answer.get("token_ids")):
            raise _odd("has no token_ids")
        token_ids: list[int] = answer["token_ids"]
        features = answer.get("features") or {}
        ranges = features.get("mm_placeholders") if isinstance(features, dict) else None
        places: dict[MediaKind, list[Place]] = {}
        for modality, found in (ranges or {}).items():
            if modality not in (MediaKind.IMAGE, MediaKind.VIDEO):
                raise NotRendered(Reason.UNSUPPORTED_MEDIA, f"the engine places media of the unknown kind {modality!r}")
            places[MediaKind(modality)] = [_place(each) for each in found]
        _check(places, len(token_ids))
        return cls(token_ids, places)


def rendered_view(rendered: Rendered, media: Sequence[MediaShape], variant: str) -> View:
    """The view of a chat with these media. Exactness ends at the first medium that has a reason.

    The engine places the n-th medium of a kind at the n-th place of that kind. Where their numbers differ nothing
    says which is which: nothing is exact.
    """
    waiting = {kind: list(places) for kind, places in rendered.places.items()}
    spans: list[ViewSpan] = []
    for item, shape in enumerate(media):
        left = waiting.get(shape.kind)
        if not left:
            return _unplaced(rendered, variant, f"the engine placed no medium for item {item}, a {shape.kind}")
        place = left.pop(0)
        spans.append(ViewSpan(item, place.offset, place.length, place.length))
    if any(waiting.values()):
        return _unplaced(rendered, variant, "the engine placed more media than the request has")
    length = len(rendered.token_ids)
    # The first in prompt order is the one that stands first in the tokens.
    doubted = min((span for span in spans if media[span.item].reason is not None), key=_offset, default=None)
    cut = length if doubted is None else doubted.offset
    why = None if doubted is None else media[doubted.item]
    return View(
        token_ids=rendered.token_ids,
        spans=sorted((span for span in spans if span.offset < cut), key=_offset),
        exact_tokens=cut,
        reason=None if why is None else why.reason,
        detail=None if why is None else why.detail,
        variant=variant,
        prompt_tokens=length,
        vision_tokens=sum(span.vision_tokens for span in spans),
    )


def _offset(span: ViewSpan) -> int:
    return span.offset


def _unplaced(rendered: Rendered, variant: str, detail: str) -> View:
    length = len(rendered.token_ids)
    return View(
        rendered.token_ids, reason=Reason.PLACEHOLDER_MISMATCH, detail=detail, variant=variant, prompt_tokens=length
    )


def _are_tokens(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= MOST_TOKENS
        and all(type(token) is int and 0 <= token < 1 << 32 for token in value)
    )


def _place(value: Any) -> Place:
    offset, length = (value.get("offset"), value.get("length")) if isinstance(value, dict) else (None, None)
    if type(offset) is not int or type(length) is not int or offset < 0 or length < 1:
        raise _odd(f"places a medium at {value!r}"[:100])
    return Place(offset, length)


def _check(places: Mapping[MediaKind, Sequence[Place]], length: int) -> None:
    end = 0
    for place in sorted((place for found in places.values() for place in found), key=lambda place: place.offset):
        if place.offset < end:
            raise _odd(f"places two media at token {place.offset}")
        end = place.offset + place.length
    if end > length:
        raise _odd(f"places a medium up to token {end} of {length}")
    for found in places.values():
        if [place.offset for place in found] != sorted(place.offset for place in found):
            raise _odd("does not place media in prompt order")


def _odd(what: str) -> NotRendered:
    return NotRendered(Reason.PLACEHOLDER_MISMATCH, f"the engine's rendering {what}")
