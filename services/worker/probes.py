"""Proves the contract: the engine itself is asked how it lays prompts out, and our layout must say the same.

A layout that is only believed is wrong silently (docs/design.md, section 7). So nothing is exact for a modality until
every probe of it came out equal, token by token; an engine's error is an outcome like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from schemas.worker import Contract, ModalityContract
from services.kv.address import Span, addresses
from services.kv.identity import engine_uuid
from services.layout.shapes import MediaShape
from services.layout.view import View
from services.runtime.offload import run_in_thread
from services.worker.engine import EngineError
from services.worker.probe_requests import Probe, identity_probe, image_probes, text_probes

EVENT_SECONDS = 5.0
TRY_AGAIN_SECONDS = (0.5, 2.0)
DETAIL_LIMIT = 1000
NO_VIDEO = "videos are not probed: they route by the text before them"

T = TypeVar("T")
InThread = Callable[[Callable[[], View]], Awaitable[View]]


class LaysOut(Protocol):
    """What a probe needs of a layouter."""

    def view(self, body: dict[str, Any], media: Sequence[MediaShape] = ()) -> View:
        """The routing view of a chat."""
        ...


class Asks(Protocol):
    """What a probe needs of an engine."""

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        """The engine's token ids of a chat. Raises EngineError."""
        ...

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Run a chat. Raises EngineError."""
        ...


class Watches(Protocol):
    """What a probe needs of the KV events."""

    def expect(self, identity: int) -> None:
        """Begin to look out for blocks with this identity."""
        ...

    async def saw(self, identity: int, expected: Sequence[int], seconds: float) -> tuple[bool, bool]:
        """Wait for blocks with it: whether they came, and whether all expected addresses are resident."""
        ...


@dataclass(frozen=True, slots=True)
class Subject:
    """What is probed."""

    model: str
    variant: str
    block_size: int
    lays_images: bool = True
    pixel_bound: int | None = None


async def prove(
    engine: Asks, layout: LaysOut, subject: Subject, watch: Watches | None, identity: int,
    *, in_thread: InThread = run_in_thread,
) -> Contract:
    """Probe text, images and the identity's way back. ``identity`` is fresh: a cached image announces nothing."""
    text = await _modality(engine, layout, text_probes(subject.model), subject.variant, in_thread)
    video = ModalityContract(detail=NO_VIDEO)
    if not subject.lays_images:
        image = ModalityContract(detail=f"layout {subject.variant} has no images")
        return Contract(model=subject.model, text=text, image=image, video=video)
    probes = await run_in_thread(image_probes, subject.model, subject.pixel_bound)
    image = await _modality(engine, layout, probes, subject.variant, in_thread)
    if image.proven and watch is not None:
        image = await _identity(engine, layout, subject, watch, identity, image, in_thread)
    return Contract(model=subject.model, text=text, image=image, video=video)


async def _modality(
    engine: Asks, layout: LaysOut, probes: Sequence[Probe], variant: str,
    in_thread: InThread,
) -> ModalityContract:  # fmt: skip
    max_pixels: int | None = None
    covered = 0
    for probe in probes:
        try:
            theirs = await _patiently(engine.tokenize, probe.body)
        except EngineError as error:
            if covered and probe.pixels > covered:
                # Too large for this engine is a bound, not a mismatch.
                max_pixels = covered
                break
            return _unproven(variant, f"probe {probe.name}: {error}")
        view = await in_thread(partial(layout.view, probe.body, probe.shapes))
        if not view.exact:
            return _unproven(variant, f"probe {probe.name}: our layout is not exact: {view.reason}, {view.detail}")
        if (difference := first_difference(view.token_ids, theirs)) is not None:
            return _unproven(variant, f"probe {probe.name}: {difference}")
        covered = max(covered, probe.pixels)
    return ModalityContract(proven=True, variant=variant, max_pixels=max_pixels)


async def _identity(
    engine: Asks, layout: LaysOut, subject: Subject, watch: Watches, identity: int, image: ModalityContract,
    in_thread: InThread,
) -> ModalityContract:  # fmt: skip
    probe = identity_probe(subject.model, engine_uuid(identity), subject.block_size)
    view = await in_thread(partial(layout.view, probe.body, probe.shapes))
    spans = [Span(span.offset, span.length, identity) for span in view.spans]
    expected = addresses(view.token_ids, subject.block_size, spans)
    watch.expect(identity)
    try:
        await _patiently(engine.complete, probe.body)
    except EngineError as error:
        return image.model_copy(update={"detail": _short(f"the identity probe failed: {error}")})
    came, equal = await watch.saw(identity, expected, EVENT_SECONDS)
    if not came:
        detail = f"the uuid sent did not come back in KV events within {EVENT_SECONDS:.0f} s"
        return image.model_copy(update={"verbatim_identity": False, "detail": detail})
    if not equal:
        detail = "the identity came back, but the blocks' addresses differ: the media range is not the engine's"
        return image.model_copy(update={"verbatim_identity": True, "proven": False, "detail": detail})
    return image.model_copy(update={"verbatim_identity": True})


async def _patiently(ask: Callable[[dict[str, Any]], Awaitable[T]], body: dict[str, Any]) -> T:
    """Ask again while the engine is only busy: a contract stands for the whole epoch."""
    for pause in TRY_AGAIN_SECONDS:
        try:
            return await ask(body)
        except EngineError as error:
            if 0 < error.status < 500 and error.status not in (408, 429):
                raise
        await asyncio.sleep(pause)
    return await ask(body)


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> str | None:
    """Where two token lists part, with what stands around it; None when they are equal."""
    if list(ours) == list(theirs):
        return None
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return (
        f"the token lists part at {at}: ours {list(ours[at : at + 8])} of {len(ours)}, "
        f"the engine's {list(theirs[at : at + 8])} of {len(theirs)}, "
        f"after {list(theirs[max(0, at - 4) : at])}"
    )


def _unproven(variant: str, detail: str) -> ModalityContract:
    return ModalityContract(proven=False, variant=variant, detail=_short(detail))


def _short(text: str) -> str:
    return text if len(text) <= DETAIL_LIMIT else text[: DETAIL_LIMIT - 1] + "…"
