"""Proves the contract of engines that tell no token ids: by what they announce after running a probe.

An engine that laid a prompt out as we do announces blocks at the addresses we predict, and counts as many prompt
tokens. One other token, one other range of a medium, and the addresses are others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from schemas.worker import Contract, ModalityContract
from services.kv.address import Span, addresses
from services.layout.view import View
from services.runtime.offload import run_in_thread
from services.worker.engine import EngineError
from services.worker.forward import usage_of
from services.worker.probe_requests import Body, Probe, image_probes, text_probes
from services.worker.probes import EVENT_SECONDS, Asks, LaysOut, Subject

NO_VIDEO = "the engine's KV events don't say which video stands in a block: videos route by the text before them"
NO_EVENTS = "the engine publishes no KV events: nothing shows how it lays prompts out"
FILLER = "one two three four five six seven eight nine ten "


class Holds(Protocol):
    """What is looked at in the KV events."""

    async def holds(self, expected: Sequence[int], seconds: float) -> bool:
        """Whether all these addresses are resident within so many seconds."""
        ...


@dataclass(frozen=True, slots=True)
class EventProver:
    """Asks one engine about one model. ``fresh`` gives identities, ``told`` how the engine is told one."""

    engine: Asks
    layout: LaysOut
    subject: Subject
    watch: Holds | None
    fresh: Callable[[], int]
    told: Callable[[int], str]
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] = run_in_thread

    async def prove(self) -> Contract:
        """Text and images."""
        subject = self.subject
        image = ModalityContract(detail=f"layout {subject.variant} has no images")
        text = await self._modality(text_probes(subject.model))
        if subject.lays_images:
            probes = await self.in_thread(partial(image_probes, subject.model, subject.pixel_bound))
            image = await self._modality(probes)
            image = image.model_copy(update={"verbatim_identity": True if image.proven else None})
        return Contract(model=subject.model, text=text, image=image, video=ModalityContract(detail=NO_VIDEO))

    async def _modality(self, probes: Sequence[Probe]) -> ModalityContract:
        variant, covered, bound = self.subject.variant, 0, None
        if self.watch is None:
            return ModalityContract(variant=variant, detail=NO_EVENTS)
        for probe in probes:
            try:
                problem = await self._differs(probe, self.watch)
            except EngineError as error:
                if covered and probe.pixels > covered:
                    bound = covered
                    break
                problem = str(error)
            if problem is not None:
                return ModalityContract(variant=variant, detail=f"probe {probe.name}: {problem}"[:1000])
            covered = max(covered, probe.pixels)
        return ModalityContract(proven=True, variant=variant, max_pixels=bound)

    async def _differs(self, probe: Probe, watch: Holds) -> str | None:
        identities = [self.fresh() for _ in probe.shapes]
        body = runnable(probe.body, [self.told(identity) for identity in identities], self.subject.block_size)
        view: View = await self.in_thread(partial(self.layout.view, body, probe.shapes))
        if not view.exact:
            return f"our layout is not exact: {view.reason}, {view.detail}"
        usage = usage_of(await self.engine.complete(body))
        found = None if usage is None else usage.prompt_tokens
        if found not in (None, len(view.token_ids)):
            return f"the engine counts {found} tokens, our layout has {len(view.token_ids)}"
        spans = [Span(span.offset, span.length, identities[span.item]) for span in view.spans]
        expected = addresses(view.token_ids, self.subject.block_size, spans)
        if await watch.holds(expected, EVENT_SECONDS):
            return None
        return f"not all of its {len(expected)} blocks were announced at the predicted addresses"


def runnable(body: Body, uuids: Sequence[str], block_size: int) -> Body:
    """A probe to be run: one token is answered, media carry their uuids, text after them fills some blocks."""
    left = list(uuids)
    messages = [dict(message) for message in body["messages"]]
    last = messages[-1]
    filler = FILLER * (block_size // 8 + 1)
    if isinstance(last["content"], str):
        last["content"] = f"{last['content']} {filler}"
    else:
        parts = [
            {**part, "uuid": left.pop(0)} if str(part.get("type", "")).endswith("_url") else part
            for part in last["content"]
        ]
        last["content"] = [*parts, {"type": "text", "text": filler}]
    return {**body, "messages": messages, "max_tokens": 1, "temperature": 0}
