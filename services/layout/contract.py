"""What the live workers of a model have proven about its layout, and what follows for a request. Pure.

A router that assumes a layout is wrong silently. So text, images and videos are exact only where every live worker's
agent has proven, by probing its engine, that the engine lays prompts out as the router does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.media import MediaKind
from schemas.worker import Contract, ModalityContract, Worker
from services.kv.reason import Reason
from services.layout.families.support import supports
from services.layout.families.variants import family_of

Why = tuple[Reason, str]
"""Why something is not exact: the reason, and a sentence for people."""

VIDEO_OFF: Why = (Reason.UNSUPPORTED_MEDIA, "videos are routed by the text before them")
"""This version lays out videos for engines (simulation, recordings) but does not sample them as an engine would."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Why text, images and videos of a model are not exact; None for what is proven."""

    text: Why | None = None
    image: Why | None = None
    video: Why | None = VIDEO_OFF
    max_pixels: int | None = None
    """Of the largest image the probes covered; None: they covered all sizes."""
    image_variant: str | None = None
    """The layout of images that all workers proved; None: that of the model folder is believed."""

    def of(self, kind: MediaKind, pixels: int | None = None) -> Why | None:
        """For a medium of a kind and size; kinds without a contract have their reason elsewhere."""
        if kind is MediaKind.VIDEO:
            return self.video
        if kind is not MediaKind.IMAGE:
            return None
        if self.image is None and self.max_pixels is not None and pixels is not None and pixels > self.max_pixels:
            return Reason.CONTRACT_MISSING, f"the image has {pixels} pixels, layouts are proven up to {self.max_pixels}"
        return self.image


def proof_of(live: Sequence[Worker], variant: str, *, required: bool = True) -> Proof:
    """What ``live`` workers of one model prove of layout ``variant``. Without ``required`` the layout is believed."""
    if not required:
        return Proof()
    if not live:
        nobody = (Reason.CONTRACT_MISSING, "no live worker serves the model")
        return Proof(nobody, nobody)
    bounds = [worker.contract.image.max_pixels for worker in live if worker.contract is not None]
    image = _image(live, variant)
    proven = live[0].contract.image.variant if image is None and live[0].contract is not None else None
    return Proof(
        _text(live),
        image,
        image_variant=proven,
        max_pixels=min((bound for bound in bounds if bound is not None), default=None),
    )


def _text(live: Sequence[Worker]) -> Why | None:
    for worker in live:
        contract = worker.contract
        if contract is None:
            return _missing(worker, "text")
        if not contract.text.proven:
            return Reason.TEMPLATE_MISMATCH, _unproven(worker, "text", contract.text)
    return None


def _image(live: Sequence[Worker], variant: str) -> Why | None:
    contracts: list[tuple[Worker, Contract]] = []
    for worker in live:
        if supports(worker.engine, variant, MediaKind.IMAGE, worker.engine_version) is Reason.UNSUPPORTED_ENGINE:
            return Reason.UNSUPPORTED_ENGINE, _unsupported(worker, variant)
        if worker.contract is None:
            return _missing(worker, "image")
        contracts.append((worker, worker.contract))
    for worker, contract in contracts:
        if not contract.image.proven:
            never_asked = not contract.image.variant and not contract.image.detail
            reason = Reason.CONTRACT_MISSING if never_asked else Reason.CONTRACT_MISMATCH
            return reason, _unproven(worker, "image", contract.image)
    variants = sorted({contract.image.variant for _, contract in contracts})
    if len(variants) > 1:
        return Reason.WORKERS_DISAGREE, f"workers proved the image layouts {', '.join(variants)}: expected one"
    if family_of(variants[0]) != family_of(variant):
        return (
            Reason.CONTRACT_MISMATCH,
            f"workers proved the image layout {variants[0]}, the model folder's is {variant}",
        )
    for worker, contract in contracts:
        if contract.image.verbatim_identity is False:
            detail = f"worker {worker.worker_id} does not say an image's identity in its KV events as it was told"
            return Reason.UNSUPPORTED_ENGINE, detail
    return None


def _unsupported(worker: Worker, variant: str) -> str:
    engine = f"{worker.engine} {worker.engine_version}".strip()
    return f"worker {worker.worker_id} runs {engine}: images of {family_of(variant)} are not exact there"


def _missing(worker: Worker, what: str) -> Why:
    return Reason.CONTRACT_MISSING, f"worker {worker.worker_id} has proven no {what} layout yet"


def _unproven(worker: Worker, what: str, contract: ModalityContract) -> str:
    said = f": {contract.detail}" if contract.detail else ""
    return f"worker {worker.worker_id} did not prove the {what} layout{said}"[:300]
