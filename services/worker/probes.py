"""Proves the contract: the engine itself is asked how it lays prompts out, and our layout must say the same.

A layout that is only believed is wrong silently (docs/design.md, section 7). So nothing is exact for a modality until
exactly one layout says what the engine said to every probe of it, token by token; an engine's error is an outcome
like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
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
from services.worker.bindings import Binding, Bindings
from services.worker.clips import mp4_uri
from services.worker.edge_probes import Part, generic_image_probes
from services.worker.edges import Edges, clip, picture, unseen
from services.worker.engine import EngineError
from services.worker.matching import Answer, covered, judge, within_bounds
from services.worker.probe_requests import Probe, identity_probe, image_probes, text_probes
from services.worker.sent_prompts import SentPrompt
from services.worker.sessions import HEADER
from services.worker.video_probes import (
    frames_identity_probe,
    frames_probes,
    video_identity_probe,
    video_probes,
)

EVENT_SECONDS = 5.0
TRY_AGAIN_SECONDS = (0.5, 2.0)
DETAIL_LIMIT = 1000
NO_FRAMES = "frames are not handed over, videos travel as they are: {}"
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

    async def complete(self, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> dict[str, Any]:
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
    """How a model's videos are probed: the rule that takes their frames, and the layouts that may be the engine's.

    ``frames``: whether the engine takes videos as frames is asked too.
    """

    sampling: Sampling
    variants: Mapping[str, Family]
    several: bool = True
    frames: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """What is probed.

    ``generic``: the layouts are made by code whose rules are not known here, so more is asked, and only what is no
    larger and no more than what was asked is exact. ``no_images`` says why images are not laid out.
    """

    model: str
    variant: str
    block_size: int
    lays_images: bool = True
    pixel_bound: int | None = None
    videos: Videos | None = None
    generic: bool = False
    no_images: str = ""


@dataclass(frozen=True, slots=True)
class Prover:
    """Asks one engine about one model."""

    engine: Asks
    layout: LaysOut
    subject: Subject
    watch: Watches | None
    in_thread: InThread = run_in_thread
    heard: Heard = field(default=lambda answer: None)
    bindings: Bindings | None = None

    async def text(self) -> ModalityContract:
        """Text, tools, several turns."""
        return await self._modality(text_probes(self.subject.model), {self.subject.variant: None})

    async def image(self, identity: int) -> ModalityContract:
        """Images, and whether an identity sent with one comes back. ``identity`` is fresh: what is cached is silent."""
        subject = self.subject
        if not subject.lays_images:
            return ModalityContract(detail=_short(subject.no_images or f"layout {subject.variant} has no images"))
        probes = await self.in_thread(partial(image_probes, subject.model, subject.pixel_bound))
        if subject.generic:
            probes += await self.in_thread(partial(generic_image_probes, subject.model))
        image = await self._modality(probes, {subject.variant: None})
        if not image.proven or self.watch is None:
            return unseen(image) if subject.generic else image
        probe = identity_probe(subject.model, engine_uuid(identity), subject.block_size)
        image = await self._identity(probe, None, identity, image)
        return await self._edges(picture, None, identity, image) if subject.generic else image

    async def video(self, identity: int) -> ModalityContract:
        """Videos: which of the layouts, whether frames are taken as believed, whether an identity comes back."""
        subject, videos = self.subject, self.subject.videos
        if videos is None:
            return ModalityContract(detail=NO_VIDEO.format(subject.variant))
        make = partial(video_probes, subject.model, videos.sampling, mp4_uri, several=videos.several)
        video = await self._modality(await self.in_thread(make), videos.variants)
        video = video.model_copy(update={"sampling": videos.sampling.name})
        if not video.proven or self.watch is None:
            return unseen(video) if subject.generic else video
        uuid = engine_uuid(identity)
        probe = await self.in_thread(
            partial(video_identity_probe, subject.model, uuid, videos.sampling, mp4_uri, subject.block_size)
        )
        family = videos.variants[video.variant]
        video = await self._identity(probe, family, identity, video)
        if subject.generic:
            return await self._edges(await self.in_thread(partial(clip, videos.sampling)), family, identity, video)
        told = video.verbatim_identity or video.binding
        return await self._frames((identity + 1) % 2**64, family, video) if videos.frames and told else video

    async def _frames(self, identity: int, family: Family, video: ModalityContract) -> ModalityContract:
        """Whether the engine takes a video as frames, lays it out as the video itself, and it can be told whose it is.

        If not, it gets the video itself.
        """
        subject, videos = self.subject, self.subject.videos
        if videos is None or self.bindings is None:
            return video
        asked = await self.in_thread(partial(frames_probes, subject.model, videos.sampling))
        answers = [await self._ask(probe) for probe in asked]
        views = {video.variant: [await self._view(probe, family) for probe in asked]}
        differs = judge(answers, views).differences.get(video.variant)
        if differs is not None:
            return video.model_copy(update={"detail": _short(NO_FRAMES.format(differs))})
        uuid = engine_uuid(identity)
        make = partial(frames_identity_probe, subject.model, uuid, videos.sampling, subject.block_size)
        blank = ModalityContract(proven=True, variant=video.variant)
        found = await self._identity(await self.in_thread(make), family, identity, blank)
        if not found.proven or not (found.binding or found.verbatim_identity):
            return video.model_copy(update={"detail": _short(NO_FRAMES.format(found.detail))})
        ways = {video.binding, found.binding}
        binding = next((way.value for way in (Binding.TOKENS, Binding.SESSION) if way.value in ways), "")
        return video.model_copy(update={"frames": True, "binding": binding})

    async def _edges(
        self, part: Part, family: Family | None, identity: int, found: ModalityContract
    ) -> ModalityContract:
        edges = Edges(self.subject.model, self.subject.block_size, part)
        return await edges.seen(
            lambda probe: self._view(probe, family), partial(self._identity, family=family), identity, found
        )

    async def _modality(
        self, probes: Sequence[Probe], variants: Mapping[str, Family | None]
    ) -> ModalityContract:
        kept, bounds = within_bounds([await self._ask(probe) for probe in probes])
        views = {name: [await self._view(answer.probe, family) for answer in kept] for name, family in variants.items()}
        verdict = judge(kept, views)
        if len(verdict.fitting) == 1:
            if self.subject.generic and any(probe.shapes for probe in probes):
                bounds = covered(kept)
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
        # What is said of frames makes them the video they are of: to our layout they are that.
        body = {name: value for name, value in probe.body.items() if name != "media_io_kwargs"}
        view: View = await self.in_thread(partial(self.layout.view, body, probe.shapes, family=family))
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
        with self._known_as(expected, spans) as headers:
            try:
                await _patiently(partial(self.engine.complete, headers=headers), probe.body)
            except EngineError as error:
                return found.model_copy(update={"detail": _short(f"the identity probe failed: {error}")})
            came, equal = await self.watch.saw(identity, expected, EVENT_SECONDS)
        if not came:
            detail = f"the uuid sent did not come back in KV events within {EVENT_SECONDS:.0f} s"
            return found.model_copy(update={"verbatim_identity": False, "detail": detail})
        if not equal:
            detail = "the identity came back, but the blocks' addresses differ: the media range is not the engine's"
            return found.model_copy(update={"verbatim_identity": True, "proven": False, "detail": detail})
        way = Binding.NONE if self.bindings is None else self.bindings.how(identity)
        return found.model_copy(update={"verbatim_identity": way is Binding.NONE, "binding": way.value})

    @contextlib.contextmanager
    def _known_as(self, expected: Sequence[int], spans: Sequence[Span]) -> Iterator[dict[str, str]]:
        """Headers of a probe whose medium may come back under another name: it is bound as a request's would be."""
        if self.bindings is None:
            yield {}
            return
        session = self.bindings.own_session()
        prompt = self.bindings.begin(SentPrompt(expected, tuple(spans), whole=True, session=session, own=True))
        try:
            yield {HEADER: session}
        finally:
            self.bindings.end(prompt)


async def prove(
    engine: Asks, layout: LaysOut, subject: Subject, watch: Watches | None, identity: int,
    *, in_thread: InThread = run_in_thread, heard: Heard = lambda answer: None, bindings: Bindings | None = None,
) -> Contract:  # fmt: skip
    """Probe text, images, videos and the identities' way back. ``identity`` is fresh, and so is the one after it.

    With ``bindings`` an identity that comes back changed is bound to the one that was sent, if it can be.
    """
    prover = Prover(engine, layout, subject, watch, in_thread, heard, bindings)
    return Contract(
        model=subject.model, text=await prover.text(), image=await prover.image(identity),
        video=await prover.video((identity + 1) % 2**64),  # and the one after that, for its frames
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
