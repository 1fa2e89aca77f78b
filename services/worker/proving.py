"""The contract of an engine's life: proven by asking, or kept from when this very engine was asked before."""

from __future__ import annotations

import random
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import structlog

from schemas.worker import Contract, ModalityContract
from services.layout.card import CardError
from services.layout.paths import layout_path
from services.runtime.offload import run_in_thread
from services.runtime.settings import Settings
from services.worker.bindings import Bindings
from services.worker.contract_cache import ContractCache, cache_key, folder_state, worth_keeping
from services.worker.engine import Engine
from services.worker.kinds import EngineKind
from services.worker.life import EngineFacts
from services.worker.model_layout import ModelLayout
from services.worker.probes import Subject, Watches, prove
from services.worker.probes_by_events import EventProver, Holds
from services.worker.render_proving import prove_rendered


class Seen(Watches, Holds, Protocol):
    """What both ways of proving look at."""


class Proving:
    """Proves the contracts of one agent's engine."""

    def __init__(
        self, settings: Settings, kind: EngineKind, engine: Engine, randomness: random.Random,
        log: structlog.stdlib.BoundLogger,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._kind = kind
        self._engine = engine
        self._random = randomness
        self._log = log
        self._cache = ContractCache(settings.data_dir / "contracts" / f"{settings.worker_id}.json")

    async def contract(
        self, facts: EngineFacts, layout: ModelLayout | CardError, watch: Seen | None, bindings: Bindings | None = None
    ) -> Contract:
        """The contract, logged. What can't be proven says why. ``bindings`` learn what the probes are called."""
        if layout_path(self._settings, facts.model) == "render":
            contract = await self._rendered(facts, layout, watch, bindings)
        elif isinstance(layout, CardError):
            detail = ModalityContract(detail=str(layout)[:1000])
            contract = Contract(model=facts.model, text=detail, image=detail, video=detail)
        else:
            try:
                contract = await self._kept_or_proven(facts, layout, watch, bindings)
            finally:
                layout.close()
        if facts.model in self._settings.video_forward_frames and not contract.video.frames:
            self._log.warning(
                "videos are not handed over as frames: start the engine with --trust-request-mm-kwargs, or take the "
                "model out of KVROUTE_VIDEO_FORWARD_FRAMES",
                worker=self._settings.worker_id, model=facts.model, detail=contract.video.detail,
            )  # fmt: skip
        for name in ("text", "image", "video"):
            found: ModalityContract = getattr(contract, name)
            say: Any = self._log.info if found.proven else self._log.warning
            say("layout proven" if found.proven else "layout not proven", worker=self._settings.worker_id,
                model=facts.model, modality=name, variant=found.variant, detail=found.detail,
                binding=found.binding or None)  # fmt: skip
        return contract

    async def _rendered(
        self, facts: EngineFacts, layout: ModelLayout | CardError, watch: Seen | None, bindings: Bindings | None
    ) -> Contract:
        if not self._kind.tokenizes:
            detail = ModalityContract(detail=f"{facts.engine} renders no chats: take another KVROUTE_LAYOUT")
            return Contract(model=facts.model, text=detail, image=detail, video=detail)
        videos = None if isinstance(layout, CardError) else layout.rendered_videos(self._settings)
        return await prove_rendered(
            self._settings, self._engine, facts, watch, self._fresh_identity(),
            url=self._settings.render_url or self._engine.url, videos=videos, bindings=bindings,
        )  # fmt: skip

    async def _kept_or_proven(
        self, facts: EngineFacts, layout: ModelLayout, watch: Seen | None, bindings: Bindings | None = None
    ) -> Contract:
        subject = Subject(
            facts.model, layout.card.variant, facts.block_size, layout.lays_images, layout.pixel_bound,
            layout.videos(self._settings), generic=layout.generic, no_images=layout.card.media_detail or "",
        )  # fmt: skip
        key = await self._key(facts, layout, subject, watch)
        kept = None if key is None else await run_in_thread(self._cache.get, key)
        if kept is not None:
            self._log.info("contract kept from before: the engine is the same", worker=self._settings.worker_id)
            return kept
        contract = await self._prove(layout, subject, watch, bindings)
        if key is not None and worth_keeping(contract):
            await run_in_thread(self._cache.put, key, contract)
        return contract

    async def _prove(
        self, layout: ModelLayout, subject: Subject, watch: Seen | None, bindings: Bindings | None = None
    ) -> Contract:
        if self._kind.tokenizes:
            return await prove(
                self._engine, layout.layouter, subject, watch, self._fresh_identity(), bindings=bindings
            )
        return await EventProver(
            self._engine, layout.layouter, subject, watch, self._fresh_identity, self._kind.uuid
        ).prove()

    async def _key(
        self, facts: EngineFacts, layout: ModelLayout, subject: Subject, watch: Seen | None
    ) -> str | None:
        """None when the engine does not say which process it is: then nothing is kept."""
        if facts.started_at is None:
            return None
        try:
            state = await run_in_thread(folder_state, layout.card.folder)
        except OSError:
            return None
        videos = subject.videos
        probing = None if videos is None else (
            videos.sampling.name, list(videos.variants), videos.several, videos.frames,
        )  # fmt: skip
        return cache_key(_own_version(), self._engine.url, facts, subject.variant, probing, watch is not None, state)

    def _fresh_identity(self) -> int:
        identity = self._random.getrandbits(64)
        self._kind.sent(identity)
        return identity


def _own_version() -> str:
    try:
        return version("kvroute")
    except PackageNotFoundError:
        return ""
