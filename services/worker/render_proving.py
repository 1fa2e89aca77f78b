"""Proves that what an engine renders is what it runs: its renderings against its tokens and its events.

The engine that renders is the worker's own, or that of ``KVROUTE_RENDER_URL``. The layout's name holds the engine's
version and a digest of all its answers, so workers that would render a prompt differently have different names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xxhash import xxh3_64

from schemas.media import MediaKind
from schemas.worker import Contract, ModalityContract
from services.layout.families.family import Family
from services.layout.families.variants import RENDER, named, place_part
from services.layout.render.client import RenderClient
from services.layout.render.rendered import NotRendered, rendered_view
from services.layout.shapes import MediaShape
from services.layout.view import View
from services.runtime.settings import Settings
from services.worker.bindings import Bindings
from services.worker.engine import EngineError
from services.worker.life import EngineFacts
from services.worker.matching import Answer
from services.worker.probes import Asks, Subject, Videos, Watches, prove

CONCURRENCY = 4


class RenderLayout:
    """Lays out by asking an engine. Called in threads; the asking is done by the loop it was made on."""

    def __init__(self, client: RenderClient, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._url = url
        self._loop = loop

    def view(self, body: Mapping[str, Any], media: Sequence[MediaShape] = (), *, family: Family | None = None) -> View:
        """The rendering as a view; what was not rendered is not exact."""
        sent = {**body, "mm_payload": "none"}
        if "tools" in body:
            # Engines that parse no tool calls refuse to be free to call one; how they write tools is the same.
            sent["tool_choice"] = "none"
        asking = asyncio.run_coroutine_threadsafe(self._client.render(self._url, sent), self._loop)
        try:
            return rendered_view(asking.result(), media, RENDER)
        except NotRendered as error:
            return View([], reason=error.reason, detail=str(error), variant=RENDER)


@dataclass(frozen=True, slots=True)
class Runnable:
    """An engine that tells tokens only of what it would run: renderings are refused where they are too long."""

    engine: Asks
    max_model_len: int | None

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        """The engine's token ids of a chat. Raises EngineError."""
        tokens = await self.engine.tokenize(body)
        if self.max_model_len is not None and len(tokens) >= self.max_model_len:
            raise EngineError(400, f"{len(tokens)} tokens, the engine takes less than {self.max_model_len}")
        return tokens

    async def complete(self, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Run a chat. Raises EngineError."""
        return await self.engine.complete(body, headers)


@dataclass(slots=True)
class Digests:
    """What an engine answered, by kind of probe."""

    _digests: dict[MediaKind | None, xxh3_64] = field(default_factory=dict)

    def take(self, answer: Answer) -> None:
        """Take an answer; those of a kind come in one order."""
        shapes = answer.probe.shapes
        digest = self._digests.setdefault(shapes[0].kind if shapes else None, xxh3_64())
        tokens = "refused" if answer.tokens is None else ",".join(map(str, answer.tokens))
        digest.update(f"{answer.probe.name}:{tokens};".encode())

    def name(self, kind: MediaKind | None) -> str:
        """16 digits."""
        return self._digests.get(kind, xxh3_64()).hexdigest()


async def prove_rendered(
    settings: Settings, engine: Asks, facts: EngineFacts, watch: Watches | None, identity: int, *, url: str,
    videos: Videos | None, bindings: Bindings | None = None,
) -> Contract:  # fmt: skip
    """The contract of an engine whose layouts are asked from ``url``. ``videos`` as they are sampled, if known."""
    client = RenderClient(seconds=settings.render_seconds, concurrency=CONCURRENCY)
    digests = Digests()
    subject = Subject(facts.model, RENDER, facts.block_size, videos=videos, generic=True)
    try:
        layout = RenderLayout(client, url, asyncio.get_running_loop())
        contract = await prove(
            Runnable(engine, facts.max_model_len), layout, subject, watch, identity, heard=digests.take,
            bindings=bindings,
        )  # fmt: skip
    finally:
        await client.close()
    version = f"{facts.engine}-{facts.version or 'unknown'}"

    def called(found: ModalityContract, kind: MediaKind | None) -> ModalityContract:
        if not found.proven:
            return found
        name = named(RENDER, version, digests.name(kind), place_part(settings.render_url))
        return found.model_copy(update={"variant": name})

    return contract.model_copy(
        update={
            "text": called(contract.text, None),
            "image": called(contract.image, MediaKind.IMAGE),
            "video": called(contract.video, MediaKind.VIDEO),
        }
    )
