"""Whether an engine's range of a medium begins and ends where ours does: seen at the edges of blocks.

A block of the prompt names a medium in its events if any of the block's tokens is in the medium's range. So a range
that is longer or shorter than ours changes a block only where the medium begins or ends at a block's edge.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from schemas.media import MediaKind
from schemas.worker import ModalityContract
from services.kv.identity import engine_uuid
from services.kv.sampling import Sampling
from services.layout.shapes import MediaShape
from services.layout.view import View, ViewSpan
from services.worker.clips import mp4_uri
from services.worker.edge_probes import EDGES, Part, edge_probe, openings
from services.worker.probe_requests import SMALL_IMAGES, Probe, png_uri
from services.worker.video_probes import PLAIN, shape_of

STRIDE = 0x9E37_79B9_7F4A_7C15
"""Between the identities of the probes: odd, so none comes twice."""


class Runs(Protocol):
    """Has a probe run, and compares what is announced with what was expected."""

    async def __call__(self, probe: Probe, *, identity: int, found: ModalityContract) -> ModalityContract:
        """The contract after it."""
        ...


Views = Callable[[Probe], Awaitable[View]]
"""Our layout of a probe."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Probes one kind of media of one engine. ``part`` makes a medium."""

    model: str
    block_size: int
    part: Part

    async def seen(self, view: Views, run: Runs, identity: int, found: ModalityContract) -> ModalityContract:
        """The contract, proven only if no edge shows another range. ``identity`` was used, those after it are fresh."""
        found = unseen(found)
        for number, (differs, stands) in enumerate(EDGES, 1):
            if not found.proven:
                break
            fresh = (identity + STRIDE * number) % 2**64
            probe = await self._at_edge(view, fresh, stands)
            if probe is None:
                detail = f"no prompt was found that would show whether the engine's range {differs}"
                return found.model_copy(update={"proven": False, "detail": detail})
            found = unseen(await run(probe, identity=fresh, found=found))
        return found

    async def _at_edge(
        self, view: Views, identity: int, stands: Callable[[ViewSpan, int], bool]
    ) -> Probe | None:
        for before in openings(self.block_size):
            probe = edge_probe(self.model, self.part, engine_uuid(identity), before, self.block_size)
            seen = await view(probe)
            if seen.exact and seen.spans and stands(seen.spans[0], self.block_size):
                return probe
        return None


def unseen(found: ModalityContract) -> ModalityContract:
    """The contract, not proven where no event has shown a medium's range yet."""
    if not found.proven or (found.verbatim_identity and not found.detail):
        return found
    detail = found.detail or "no KV events show where media begin and end"
    return found.model_copy(update={"proven": False, "detail": detail})


def picture(uuid: str) -> tuple[dict[str, Any], MediaShape]:
    """A small picture as a content part."""
    height, width = SMALL_IMAGES[1]
    part = {"type": "image_url", "image_url": {"url": png_uri(height, width, 7)}, "uuid": uuid}
    return part, MediaShape(MediaKind.IMAGE, height, width)


def clip(sampling: Sampling) -> Part:
    """A small video as a content part. Takes a moment."""
    uri, shape = mp4_uri(PLAIN), shape_of(PLAIN, sampling)
    return lambda uuid: ({"type": "video_url", "video_url": {"url": uri}, "uuid": uuid}, shape)
