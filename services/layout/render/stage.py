"""Renderings beside the layout stage: which engine is asked, with which body, and what is made of its answer."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

from schemas.media import MediaResolved
from schemas.worker import Worker
from services.kv.reason import Reason
from services.layout.chat_request import media_reasons
from services.layout.families.family import Family
from services.layout.families.variants import RENDER, family_of
from services.layout.layouter import estimate_tokens
from services.layout.render.body import render_body
from services.layout.render.client import RenderClient, Unreachable, read
from services.layout.render.rendered import NotRendered, Rendered, rendered_view
from services.layout.shapes import MediaShape
from services.layout.view import View
from services.runtime.blobs import BlobGone, Blobs
from services.runtime.host_memory import HostMemory, request_name
from services.runtime.offload import run_alone, run_in_thread
from services.runtime.settings import Settings

TRIES = 2
"""Engines asked before a request goes on without."""


class RenderedChat:
    """What an engine said to one request, in the place of a layouter."""

    family: Family | None = None

    def __init__(self, said: Rendered | NotRendered, answer: bytes | None = None) -> None:
        self._said = said
        self.answer = answer
        """With the processed media, as the engine words it; None if that was not asked for."""
        self.variant = RENDER
        """What the layout is called in the decision."""

    def view(self, body: Mapping[str, Any], media: Sequence[MediaShape] = (), *, family: Family | None = None) -> View:
        """The view of that request. Never raises: what was not rendered is not exact, and the view says why."""
        if isinstance(self._said, NotRendered):
            detail = str(self._said)[:300]
            return View(
                [], reason=self._said.reason, detail=detail, variant=self.variant,
                prompt_tokens=estimate_tokens(body, media),
            )  # fmt: skip
        reasons = media_reasons(body)
        shapes = [
            MediaShape(shape.kind, reason=reasons[shape.kind][0], detail=reasons[shape.kind][1])
            if shape.reason is None and shape.kind in reasons else shape for shape in media
        ]  # fmt: skip
        return rendered_view(self._said, shapes, self.variant)


class Rendering:
    """Has the requests of a stage rendered."""

    def __init__(self, settings: Settings, blobs: Blobs) -> None:
        self._url = settings.render_url
        self._memory = HostMemory.of(settings)
        self._blobs = blobs
        self._client = RenderClient(seconds=settings.render_seconds, concurrency=settings.render_concurrency)

    async def chat(
        self, resolved: MediaResolved, body: Mapping[str, Any], live: Sequence[Worker], *, model: str, lora: str | None
    ) -> RenderedChat:
        """The rendering of a request by one of the model's live workers, or why there is none."""
        try:
            sent = await self._body(resolved, body, model, lora)
            whole = self._memory is not None and _all_named(resolved)
            if whole:
                sent["mm_payload"] = "tensors"
            answer = await self._ask(sent, self._urls(resolved.key, live))
            return RenderedChat(await read(answer), answer if whole else None)
        except NotRendered as error:
            return RenderedChat(error)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def hand_over(self, resolved: MediaResolved, chat: RenderedChat) -> None:
        """Leave a rendering for an agent on this host, which then need not have the media processed again."""
        if self._memory is not None and chat.answer is not None:
            name = request_name(resolved.tenant, resolved.request_id)
            await run_in_thread(self._memory.put, name, chat.answer)

    async def sweep(self) -> None:
        """Remove what no agent took."""
        if self._memory is not None:
            await run_in_thread(self._memory.sweep)

    async def _ask(self, body: Mapping[str, Any], urls: Sequence[str]) -> bytes:
        last = NotRendered(Reason.CONTRACT_MISSING, "no live worker says where it can be asked for a rendering")
        for url in urls[:TRIES]:
            try:
                return await self._client.ask(url, body)
            except Unreachable as error:
                last = error
        raise last

    def _urls(self, key: str, live: Sequence[Worker]) -> list[str]:
        """Where to ask, spread over the workers by request."""
        if self._url is not None:
            return [self._url]
        urls = sorted({worker.engine_url for worker in live if worker.engine_url and _renders(worker)})
        turn = crc32(key.encode()) % len(urls) if urls else 0
        return urls[turn:] + urls[:turn]

    async def _body(
        self, resolved: MediaResolved, body: Mapping[str, Any], model: str, lora: str | None
    ) -> dict[str, Any]:
        claims = {index: item.claim for index, item in enumerate(resolved.media) if item.claim is not None}
        try:
            payloads = await asyncio.gather(*map(self._blobs.get, claims.values()))
        except BlobGone as error:
            raise NotRendered(Reason.FETCH_FAILED, str(error)) from None
        types = {index: claim.content_type or "application/octet-stream" for index, claim in claims.items()}
        found = dict(zip(claims, payloads, strict=True))

        def build() -> dict[str, Any]:
            uris = {
                index: f"data:{types[index]};base64,{base64.b64encode(data).decode()}" for index, data in found.items()
            }
            return render_body(body, resolved.media, uris, model=model, lora=lora)

        return await run_alone(build) if found else build()


def _all_named(resolved: MediaResolved) -> bool:
    """Whether all media of a request travel under identities of ours; then they can be generated from a rendering."""
    return bool(resolved.media) and all(item.identity is not None and item.forward for item in resolved.media)


def _renders(worker: Worker) -> bool:
    """Whether the worker has proven that it renders."""
    return worker.contract is not None and family_of(worker.contract.text.variant) == RENDER
