"""The layout stage on the bus: media-resolved in, expanded out; registrations of workers beside it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from schemas.expanded import Expanded
from schemas.media import MediaResolved
from schemas.worker import Worker
from services.kv.reason import Reason
from services.layout.cards import Cards
from services.layout.contract import Proof
from services.layout.families.variants import RENDER, named, place_part
from services.layout.fleet import Fleet
from services.layout.lay_out import lay_out
from services.layout.layouter import Layouter
from services.layout.paths import any_path, layout_path
from services.layout.processor.stage import Processing
from services.layout.render.stage import Rendering
from services.layout.routing_events import VideoRouting
from services.runtime.blobs import BlobGone, Blobs
from services.runtime.bus import Record
from services.runtime.errors import BadRecord, Refused
from services.runtime.metrics import LAYOUT_SECONDS, LAYOUT_VIEWS
from services.runtime.offload import run_alone, run_in_thread
from services.runtime.refusal import cancelled, deadline_exceeded, refuse
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import EXPANDED, MEDIA_RESOLVED, WORKERS
from services.runtime.video_sampling import video_sampling

GROUP = "layout"
STAGE = "layout"
_SMALL = 32 << 10
"""Bodies up to this size are parsed on the event loop."""
_NO_FOLDER = (Reason.UNSUPPORTED_MODEL, "no usable model folder says how the model's videos are laid out")

M = TypeVar("M", MediaResolved, Worker)


def build(
    settings: Settings,
    service: Service,
    *,
    cards: Cards | None = None,
    blobs: Blobs | None = None,
    processing: Processing | None = None,
) -> None:
    """Register the stage. ``cards``, ``blobs`` and ``processing`` are made from the settings unless given."""
    if processing is None and any_path(settings, "processor"):
        processing = Processing(settings)
    stage = Layout(settings, service, cards, blobs, processing)
    service.follow_control()
    service.project(WORKERS, stage.take_worker)
    service.consume(MEDIA_RESOLVED, stage.take, group=GROUP)
    service.on_start(stage.begin)
    service.on_stop(stage.end)
    if settings.render_handover_bytes:
        service.every(settings.render_handover_seconds, stage.sweep, name="handover")


class Layout:
    """What the stage keeps: the models' layouters and the newest registration of every worker."""

    def __init__(
        self,
        settings: Settings,
        service: Service,
        cards: Cards | None,
        blobs: Blobs | None,
        processing: Processing | None,
    ) -> None:
        self._settings = settings
        self._service = service
        self._processing = processing
        dress = (lambda card: card) if processing is None else processing.dress
        self._cards = cards or Cards.of(settings, on_problem=self._unusable, dress=dress)
        self._blobs = blobs or Blobs.of(settings)
        self._rendering = Rendering(settings, self._blobs) if any_path(settings, "render") else None
        self._fleet = Fleet(require_contract=settings.layout_require_contract)
        self._video = VideoRouting(service.log)

    async def begin(self) -> None:
        """Load the models beside the start, so that the first request does not wait for a vocabulary."""
        self._service.spawn(self._warm(), name="layout-cards")

    async def end(self) -> None:
        """End what runs beside the stage."""
        if self._processing is not None:
            self._processing.close()
        if self._rendering is not None:
            await self._rendering.close()

    async def sweep(self) -> None:
        """Remove what was left for agents and not taken."""
        if self._rendering is not None:
            await self._rendering.sweep()

    def take_worker(self, record: Record) -> None:
        """One registration or tombstone."""
        if record.value is None:
            changed = self._fleet.forget((record.key or b"").decode())
        else:
            changed = self._fleet.register(_decoded(Worker, record))
        for model in changed:
            self._say_videos(model)

    async def take(self, record: Record) -> None:
        """One resolved request: expanded, refused, or dropped because it was cancelled."""
        started = self._service.clock.monotonic()
        resolved = _decoded(MediaResolved, record)
        try:
            self._check(resolved)
            expanded = await self._expand(resolved)
        except Refused as refused:
            await refuse(self._service, resolved, refused, stage=STAGE)
            return
        seconds = self._service.clock.monotonic() - started
        LAYOUT_SECONDS.observe(seconds)
        LAYOUT_VIEWS.labels(expanded.model, expanded.reason.value if expanded.reason else "").inc()
        timings = {**expanded.timings_ms, STAGE: round(seconds * 1000, 3)}
        await self._service.sender.send(
            EXPANDED.name, expanded.model_copy(update={"timings_ms": timings}), key=expanded.key
        )

    def _check(self, resolved: MediaResolved) -> None:
        if self._service.cancellations.is_cancelled(resolved.key):
            raise cancelled()
        late_ms = self._service.clock.now_ms() - resolved.deadline_ms
        if late_ms >= 0:
            raise deadline_exceeded(late_ms)

    async def _expand(self, resolved: MediaResolved) -> Expanded:
        model, lora = self._fleet.resolve(resolved.model)
        if model not in self._cards and not self._fleet.serves(model):
            raise Refused(404, f"The model `{resolved.model}` does not exist.", code="model_not_found")
        body = await self._body(resolved)
        block_sizes = sorted({*self._fleet.block_sizes(model), *self._settings.block_sizes})
        if self._rendering is not None and layout_path(self._settings, model) == "render":
            return await self._render(self._rendering, resolved, body, block_sizes, model, resolved.lora or lora)
        if self._processing is not None:
            await self._prepare(self._processing, model, resolved)

        def work() -> Expanded:
            """In a thread: everything that takes milliseconds."""
            layouter = self._cards.get(model)
            proof = self._proof(model, layouter)
            return lay_out(
                resolved, body, layouter, proof, block_sizes, model=model, lora=resolved.lora or lora
            )

        return await run_in_thread(work)

    async def _render(
        self,
        rendering: Rendering,
        resolved: MediaResolved,
        body: dict[str, Any],
        block_sizes: list[int],
        model: str,
        lora: str | None,
    ) -> Expanded:
        left = resolved.deadline_ms - self._service.clock.now_ms()
        try:
            async with asyncio.timeout(left / 1000):
                chat = await rendering.chat(resolved, body, self._fleet.live(model), model=model, lora=lora)
        except TimeoutError:
            raise deadline_exceeded(0) from None

        def work() -> Expanded:
            """In a thread: a model folder may have to be read."""
            proof = self._proof(model, self._cards.get(model))
            chat.variant = proof.image_variant or chat.variant
            return lay_out(resolved, body, chat, proof, block_sizes, model=model, lora=lora)

        expanded = await run_in_thread(work)
        if expanded.reason is None:
            await rendering.hand_over(resolved, chat)
        return expanded

    async def _prepare(self, processing: Processing, model: str, resolved: MediaResolved) -> None:
        left = resolved.deadline_ms - self._service.clock.now_ms()
        try:
            layouter = await run_in_thread(self._cards.get, model)
            await processing.prepare(layouter, resolved.media, left / 1000)
        except TimeoutError:
            raise deadline_exceeded(0) from None

    async def _body(self, resolved: MediaResolved) -> dict[str, Any]:
        if resolved.body is not None:
            text: str | bytes = resolved.body
        elif resolved.body_claim is None:
            raise BadRecord("no_body", f"request {resolved.key} has neither body nor body_claim")
        else:
            try:
                text = await self._blobs.get(resolved.body_claim)
            except BlobGone as error:
                raise Refused(410, str(error), type="server_error", code="body_gone") from None
        return await run_alone(_parsed, text) if len(text) > _SMALL else _parsed(text)

    async def _warm(self) -> None:
        for model in self._cards.names:
            await run_in_thread(self._cards.get, model)
            self._say_videos(model)

    def _proof(self, model: str, layouter: Layouter | None) -> Proof:
        """What the workers prove of the layout that the model folder, or an engine, says."""
        if layout_path(self._settings, model) == "render":
            model_type = "" if layouter is None else layouter.card.model_type
            rule = video_sampling(self._settings, model, model_type)
            variant = named(RENDER, place_part(self._settings.render_url))
            return self._fleet.proof(model, variant, None if rule is None else rule.name)
        if layouter is None:
            return replace(self._fleet.proof(model, ""), video=_NO_FOLDER)
        card = layouter.card
        sampling = video_sampling(self._settings, model, card.model_type)
        known = card.family is not None and sampling is not None and card.family.video_variant
        return self._fleet.proof(model, card.variant, sampling.name if sampling is not None and known else None)

    def _say_videos(self, model: str) -> None:
        """Tell operators what became of a model's videos; nothing of a model whose folder is still being read."""
        if not self._fleet.serves(model):
            self._video.note(model, None)
        elif model not in self._cards or self._cards.loaded(model):
            self._video.note(model, self._proof(model, self._cards.get(model)))

    def _unusable(self, model: str, what: str) -> None:
        self._service.log.error("model folder unusable", model=model, problem=what)


def _parsed(text: str | bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(text)
    except ValueError as error:
        raise Refused(400, f"the body is not JSON: {error}", code="invalid_request") from None
    if not isinstance(body, dict):
        raise Refused(400, f"the body is a {type(body).__name__}, expected an object", code="invalid_request")
    return body


def _decoded(kind: type[M], record: Record) -> M:
    try:
        return kind.from_bytes(record.value or b"")
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))[:80]
        raise BadRecord("invalid_message", f"not a {kind.SCHEMA}: {place}: {first['msg']}") from None
    except ValueError:
        raise BadRecord("not_json", f"not a {kind.SCHEMA}: the record is not JSON in UTF-8") from None
