"""Proves the contract: the engine itself is asked how it lays prompts out, and our layout must say the same.

A layout that is only believed is wrong silently (docs/design.md, section 7). So nothing is exact for a modality until
exactly one layout says what the engine said to every probe of it, token by token; an engine's error is an outcome
like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from schemas.media import MediaKind
from schemas.worker import Contract, ModalityContract
from services.kv.address import Span, addresses
from services.kv.identity import engine_uuid
from services.kv.sampling import Sampling
from services.layout.families.family import Family
from services.layout.shapes import MediaShape
from services.layout.view import View
from services.runtime.offload import run_in_thread
from services.worker.clips import mp4_uri
from services.worker.engine import EngineError
from services.worker.matching import Answer, judge, within_bounds
from services.worker.probe_requests import Probe, identity_probe, image_probes, text_probes
from services.worker.video_probes import video_identity_probe, video_probes

EVENT_SECONDS = 5.0
TRY_AGAIN_SECONDS = (0.5, 2.0)
DETAIL_LIMIT = 1000
NO_VIDEO = "layout {} has no videos: they route by the text before them"

T = TypeVar("T")
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
Heard = Callable[[Answer], None]
"""Told every answer of the engine: the conformance report shows them."""


class LaysOut(Protocol):
    """What a probe needs of a layouter."""

    def view(self, body: dict[str, Any], media: Sequence[MediaShape] = (), *, family: Family | None = None) -> View:
        """The routing view of a chat, under the card's layout or another variant of it."""
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
class Videos:
    """How a model's videos are probed: the rule that takes their frames, and the layouts that may be the engine's."""

    sampling: Sampling
    variants: Mapping[str, Family]
    several: bool = True


@dataclass(frozen=True, slots=True)
class Subject:
    """What is probed."""

    model: str
    variant: str
    block_size: int
    lays_images: bool = True
    pixel_bound: int | None = None
    videos: Videos | None = None


@dataclass(frozen=True, slots=True)
class Prover:
    """Asks one engine about one model."""

    engine: Asks
    layout: LaysOut
    subject: Subject
    watch: Watches | None
    in_thread: InThread = run_in_thread
    heard: Heard = field(default=lambda answer: None)

    async def text(self) -> ModalityContract:
        """Text, tools, several turns."""
        return await self._modality(text_probes(self.subject.model), {self.subject.variant: None})

    async def image(self, identity: int) -> ModalityContract:
        """Images, and whether an identity sent with one comes back. ``identity`` is fresh: what is cached is silent."""
        subject = self.subject
        if not subject.lays_images:
            return ModalityContract(detail=f"layout {subject.variant} has no images")
        probes = await self.in_thread(partial(image_probes, subject.model, subject.pixel_bound))
        image = await self._modality(probes, {subject.variant: None})
        if not image.proven or self.watch is None:
            return image
        probe = identity_probe(subject.model, engine_uuid(identity), subject.block_size)
        return await self._identity(probe, None, identity, image)

    async def video(self, identity: int) -> ModalityContract:
        """Videos: which of the layouts, whether frames are taken as believed, whether an identity comes back."""
        subject, videos = self.subject, self.subject.videos
        if videos is None:
            return ModalityContract(detail=NO_VIDEO.format(subject.variant))
        make = partial(video_probes, subject.model, videos.sampling, mp4_uri, several=videos.several)
        video = await self._modality(await self.in_thread(make), videos.variants)
        video = video.model_copy(update={"sampling": videos.sampling.name})
        if not video.proven or self.watch is None:
            return video
        uuid = engine_uuid(identity)
        probe = await self.in_thread(
            partial(video_identity_probe, subject.model, uuid, videos.sampling, mp4_uri, subject.block_size)
        )
        return await self._identity(probe, videos.variants[video.variant], identity, video)

    async def _modality(
        self, probes: Sequence[Probe], variants: Mapping[str, Family | None]
    ) -> ModalityContract:
        kept, bounds = within_bounds([await self._ask(probe) for probe in probes])
        views = {name: [await self._view(answer.probe, family) for answer in kept] for name, family in variants.items()}
        verdict = judge(kept, views)
        if len(verdict.fitting) == 1:
            return ModalityContract(
                proven=True, variant=verdict.fitting[0], max_pixels=bounds.max_pixels, max_items=bounds.max_items
            )
        if verdict.fitting:
            detail = f"the probes fit several layouts: {', '.join(verdict.fitting)}"
        else:
            detail = "; ".join(
                text if len(variants) == 1 else f"{name}: {text}" for name, text in verdict.differences.items()
            )
        return ModalityContract(proven=False, variant=next(iter(variants), ""), detail=_short(detail))

    async def _ask(self, probe: Probe) -> Answer:
        try:
            answer = Answer(probe, await _patiently(self.engine.tokenize, probe.body))
        except EngineError as error:
            answer = Answer(probe, refusal=str(error))
        self.heard(answer)
        return answer

    async def _view(self, probe: Probe, family: Family | None) -> View:
        view: View = await self.in_thread(partial(self.layout.view, probe.body, probe.shapes, family=family))
        return view

    async def _identity(
        self, probe: Probe, family: Family | None, identity: int, found: ModalityContract
    ) -> ModalityContract:
        if self.watch is None:
            return found
        view = await self._view(probe, family)
        spans = [Span(span.offset, span.length, identity) for span in view.spans]
        expected = addresses(view.token_ids, self.subject.block_size, spans)
        self.watch.expect(identity)
        try:
            await _patiently(self.engine.complete, probe.body)
        except EngineError as error:
            return found.model_copy(update={"detail": _short(f"the identity probe failed: {error}")})
        came, equal = await self.watch.saw(identity, expected, EVENT_SECONDS)
        if not came:
            detail = f"the uuid sent did not come back in KV events within {EVENT_SECONDS:.0f} s"
            return found.model_copy(update={"verbatim_identity": False, "detail": detail})
        if not equal:
            detail = "the identity came back, but the blocks' addresses differ: the media range is not the engine's"
            return found.model_copy(update={"verbatim_identity": True, "proven": False, "detail": detail})
        return found.model_copy(update={"verbatim_identity": True})


async def prove(
    engine: Asks, layout: LaysOut, subject: Subject, watch: Watches | None, identity: int,
    *, in_thread: InThread = run_in_thread, heard: Heard = lambda answer: None,
) -> Contract:  # fmt: skip
    """Probe text, images, videos and the identities' way back. ``identity`` is fresh, and so is the one after it."""
    prover = Prover(engine, layout, subject, watch, in_thread, heard)
    return Contract(
        model=subject.model, text=await prover.text(), image=await prover.image(identity),
        video=await prover.video((identity + 1) % 2**64),
    )  # fmt: skip


def video_choices(family: Family | None, rates: Sequence[float]) -> dict[str, Family]:
    """The layouts of videos an engine of this family may have, by name."""
    if family is None or family.placeholder(MediaKind.VIDEO) is None:
        return {}
    return {name: family.chosen(video=name) for name in family.video_variants(rates)}


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


def _short(text: str) -> str:
    return text if len(text) <= DETAIL_LIMIT else text[: DETAIL_LIMIT - 1] + "…"
