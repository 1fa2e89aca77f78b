"""One request through the layout: resolved media in, view, addresses and media spans out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from schemas.expanded import Expanded, MediaSpan
from schemas.media import MediaItem, MediaResolved
from services.kv.address import Span, addresses
from services.kv.reason import Reason
from services.layout.contract import Proof
from services.layout.families.family import Family
from services.layout.families.variants import UnknownVariant
from services.layout.layouter import estimate_tokens
from services.layout.shapes import MediaShape
from services.layout.view import View

MAX_ADDRESSES = 60_000
"""Of one request, all block sizes together: keeps the record under its limit. A longer prompt is matched this far."""

_DETAIL_LIMIT = 500


class LaysOut(Protocol):
    """What lays out a request: a model's layouter, or an engine's answer."""

    @property
    def family(self) -> Family | None:
        """Whose variants the workers' contracts choose from; None where nothing is to be chosen."""
        ...

    def view(self, body: Mapping[str, Any], media: Sequence[MediaShape] = (), *, family: Family | None = None) -> View:
        """The routing view of a chat."""
        ...


def lay_out(
    resolved: MediaResolved,
    body: Mapping[str, Any],
    layouter: LaysOut | None,
    proof: Proof,
    block_sizes: Sequence[int],
    *,
    model: str,
    lora: str | None,
) -> Expanded:
    """The expanded request. ``model`` and ``lora`` are what the served name stands for; the body stays as it is."""
    view = _view(resolved, body, layouter, proof)
    if not block_sizes and view.reason is None:
        detail = f"no live worker of {model} has said its block size"
        view = replace(view, reason=Reason.BLOCK_SIZE_UNSEEN, detail=detail)
    media, spans = _media(resolved.media, view)
    carried = {name: getattr(resolved, name) for name in MediaResolved.model_fields}
    carried |= {"model": model, "lora": lora, "media": media}
    return Expanded(
        **carried,
        prompt_tokens=max(view.prompt_tokens, view.exact_tokens),
        exact_tokens=view.exact_tokens,
        reason=view.reason,
        detail=None if view.detail is None else view.detail[:_DETAIL_LIMIT],
        addresses=_addresses(view, spans, block_sizes, lora, resolved.cache_salt),
        spans=spans,
        vision_tokens=view.vision_tokens,
        variant=view.variant,
    )


def _view(resolved: MediaResolved, body: Mapping[str, Any], layouter: LaysOut | None, proof: Proof) -> View:
    family, proof = _proven_family(layouter, proof)
    kinds = [item.kind for item in resolved.media]
    shapes = [_shape(item, proof, kinds[: index + 1].count(item.kind)) for index, item in enumerate(resolved.media)]
    if layouter is None:
        detail = f"no usable model folder is known for {resolved.model}"
        return View([], reason=Reason.TEMPLATE_MISSING, detail=detail, prompt_tokens=estimate_tokens(body, shapes))
    view = layouter.view(body, shapes, family=family)
    if proof.text is not None and view.reason is not Reason.TEMPLATE_MISSING:
        return view.unproven(*proof.text)
    return view


def _proven_family(layouter: LaysOut | None, proof: Proof) -> tuple[Family | None, Proof]:
    """The variants of the model's layout that its workers proved; where there is no such, its media are not exact."""
    family = None if layouter is None else layouter.family
    if family is None:
        return None, proof
    try:
        family = family.chosen(image=proof.image_variant)
    except UnknownVariant as error:
        proof = replace(proof, image=(Reason.CONTRACT_MISMATCH, str(error)))
    try:
        family = family.chosen(video=proof.video_variant)
    except UnknownVariant as error:
        proof = replace(proof, video=(Reason.CONTRACT_MISMATCH, str(error)))
    return family, proof


def _shape(item: MediaItem, proof: Proof, number: int) -> MediaShape:
    shape = MediaShape.of(item)
    if shape.reason is not None:
        return shape
    why = proof.of(item.kind, (item.height or 0) * (item.width or 0) * (item.frames or 1), number)
    return shape if why is None else replace(shape, reason=why[0], detail=why[1])


def _media(items: Sequence[MediaItem], view: View) -> tuple[list[MediaItem], list[MediaSpan]]:
    """The items with what became of them, and the spans of those in the exact part.

    What lies after the cut is not told to the engine: its place, and so its blocks, are not known for sure.
    """
    spans: list[MediaSpan] = []
    for span in view.spans:
        identity = items[span.item].identity
        if identity is None:
            raise ValueError(f"item {span.item} has a place in the exact view but no identity")
        spans.append(
            MediaSpan(
                item=span.item,
                offset=span.offset,
                length=span.length,
                identity=identity,
                vision_tokens=span.vision_tokens,
            )
        )
    placed = {span.item for span in view.spans}
    media = [
        item if index in placed else item.model_copy(update={"forward": False, "reason": item.reason or view.reason})
        for index, item in enumerate(items)
    ]
    return media, spans


def _addresses(
    view: View, spans: Sequence[MediaSpan], block_sizes: Sequence[int], lora: str | None, cache_salt: str | None
) -> dict[int, list[int]]:
    keys = [Span(span.offset, span.length, span.identity) for span in spans]
    most = MAX_ADDRESSES // max(1, len(block_sizes))
    return {
        size: addresses(
            view.token_ids[: min(view.exact_tokens, most * size)], size, keys, lora=lora, cache_salt=cache_salt
        )
        for size in block_sizes
    }
