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
from services.layout.families.variants import RENDER, family_of, place_of

Why = tuple[Reason, str]
"""Why something is not exact: the reason, and a sentence for people."""

_SAME_SETTINGS = "KVROUTE_LAYOUT and KVROUTE_RENDER_URL must be the same on the layout stage and the agents"

NO_VIDEO: Why = (Reason.UNSUPPORTED_MEDIA, "the model's family has no exact videos")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the probes of a kind of medium covered; None: they covered all there is.

    ``pixels`` of one medium (of a video: of all frames the model sees), ``items`` in one prompt.
    """

    pixels: int | None = None
    items: int | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """Why text, images and videos of a model are not exact; None for what is proven.

    ``image_variant`` and ``video_variant`` are the layouts that all workers proved; None: that of the model folder is
    believed.
    """

    text: Why | None = None
    image: Why | None = None
    video: Why | None = None
    image_bounds: Bounds = Bounds()
    video_bounds: Bounds = Bounds()
    image_variant: str | None = None
    video_variant: str | None = None

    def of(self, kind: MediaKind, pixels: int | None = None, number: int = 1) -> Why | None:
        """For a medium of a kind and size, the ``number``-th of its kind; other kinds have their reason elsewhere."""
        if kind not in (MediaKind.IMAGE, MediaKind.VIDEO):
            return None
        images = kind is MediaKind.IMAGE
        why, bounds = (self.image, self.image_bounds) if images else (self.video, self.video_bounds)
        if why is None and bounds.pixels is not None and pixels is not None and pixels > bounds.pixels:
            detail = f"the {kind} has {pixels} pixels, layouts are proven up to {bounds.pixels}"
            return Reason.CONTRACT_MISSING, detail
        if why is None and bounds.items is not None and number > bounds.items:
            return Reason.CONTRACT_MISSING, f"the prompt has more than {bounds.items} {kind}s: no more are proven"
        return why


def proof_of(live: Sequence[Worker], variant: str, *, sampling: str | None = None, required: bool = True) -> Proof:
    """What ``live`` workers of one model prove of layout ``variant``. Without ``required`` the layout is believed.

    ``sampling`` is how we take frames of the model's videos; None for a family without exact videos.
    """
    no_video = None if sampling is not None else NO_VIDEO
    if not required:
        return Proof(video=no_video)
    if not live:
        nobody = (Reason.CONTRACT_MISSING, "no live worker serves the model")
        return Proof(nobody, nobody, no_video or nobody)
    image, video = _media(live, variant, MediaKind.IMAGE), no_video or _videos(live, variant, sampling or "")
    contracts = [worker.contract for worker in live if worker.contract is not None]
    return Proof(
        _text(live, variant),
        image,
        video,
        _bounds([contract.image for contract in contracts]),
        _bounds([contract.video for contract in contracts]),
        image_variant=contracts[0].image.variant if image is None else None,
        video_variant=contracts[0].video.variant if video is None else None,
    )


def _bounds(proven: Sequence[ModalityContract]) -> Bounds:
    """The least that any worker covers."""
    return Bounds(
        min((one.max_pixels for one in proven if one.max_pixels is not None), default=None),
        min((one.max_items for one in proven if one.max_items is not None), default=None),
    )


def _text(live: Sequence[Worker], variant: str) -> Why | None:
    """An engine's own rendering says nothing of the folder's template, nor the other way round."""
    rendered: set[str] = set()
    for worker in live:
        contract = worker.contract
        if contract is None:
            return _missing(worker, "text")
        if not contract.text.proven:
            return Reason.TEMPLATE_MISMATCH, _unproven(worker, "text", contract.text)
        if _another_path(contract.text.variant, variant):
            proved = f"worker {worker.worker_id} proved text as {contract.text.variant}"
            detail = f"{proved}, here it is laid out as {variant}: {_SAME_SETTINGS}"
            return Reason.CONTRACT_MISMATCH, detail
        rendered.add(contract.text.variant)
    if family_of(variant) == RENDER and len(rendered) > 1:
        return Reason.WORKERS_DISAGREE, f"workers render text as {', '.join(sorted(rendered))}: expected one"
    return None


def _media(live: Sequence[Worker], variant: str, kind: MediaKind) -> Why | None:
    contracts: list[tuple[Worker, ModalityContract]] = []
    for worker in live:
        if supports(worker.engine, variant, kind, worker.engine_version) is Reason.UNSUPPORTED_ENGINE:
            return Reason.UNSUPPORTED_ENGINE, _unsupported(worker, variant, kind)
        if worker.contract is None:
            return _missing(worker, kind)
        contracts.append((worker, _modality(worker.contract, kind)))
    for worker, contract in contracts:
        if not contract.proven:
            never_asked = not contract.variant and not contract.detail
            reason = Reason.CONTRACT_MISSING if never_asked else Reason.CONTRACT_MISMATCH
            return reason, _unproven(worker, kind, contract)
    variants = sorted({contract.variant for _, contract in contracts})
    if len(variants) > 1:
        return Reason.WORKERS_DISAGREE, f"workers proved the {kind} layouts {', '.join(variants)}: expected one"
    if _another_path(variants[0], variant):
        detail = f"workers proved the {kind} layout {variants[0]}, here it is {variant}: {_SAME_SETTINGS}"
        return Reason.CONTRACT_MISMATCH, detail
    if family_of(variants[0]) != family_of(variant):
        return (
            Reason.CONTRACT_MISMATCH,
            f"workers proved the {kind} layout {variants[0]}, the model folder's is {variant}",
        )
    for worker, contract in contracts:
        if contract.verbatim_identity is False and not contract.binding:
            detail = (
                f"worker {worker.worker_id} does not say the identity of {kind}s in its KV events as it was told, and "
                "its agent could not tell whose it is"
            )
            return Reason.UNSUPPORTED_ENGINE, detail
    return None


def _videos(live: Sequence[Worker], variant: str, sampling: str) -> Why | None:
    """As for images; and all take the same frames as we do."""
    if (why := _media(live, variant, MediaKind.VIDEO)) is not None:
        return why
    rules = sorted({worker.contract.video.sampling for worker in live if worker.contract is not None})
    if len(rules) > 1:
        return Reason.WORKERS_DISAGREE, f"workers take frames by {', '.join(rules)}: expected one rule"
    if rules != [sampling]:
        return (
            Reason.CONTRACT_MISMATCH,
            f"workers take frames of videos by {rules[0] or 'an unknown rule'}, we by {sampling}: compare "
            "KVROUTE_VIDEO_NUM_FRAMES, KVROUTE_VIDEO_NUM_FRAMES_BY_MODEL and KVROUTE_VIDEO_FPS_BY_MODEL",
        )
    return None


def _another_path(proved: str, variant: str) -> bool:
    """Whether only one of the two is an engine's own rendering, or both are, but of other engines."""
    return (family_of(proved) == RENDER) != (family_of(variant) == RENDER) or place_of(proved) != place_of(variant)


def _modality(contract: Contract, kind: MediaKind) -> ModalityContract:
    return contract.image if kind is MediaKind.IMAGE else contract.video


def _unsupported(worker: Worker, variant: str, kind: MediaKind) -> str:
    engine = f"{worker.engine} {worker.engine_version}".strip()
    return f"worker {worker.worker_id} runs {engine}: {kind}s of {family_of(variant)} are not exact there"


def _missing(worker: Worker, what: str) -> Why:
    return Reason.CONTRACT_MISSING, f"worker {worker.worker_id} has proven no {what} layout yet"


def _unproven(worker: Worker, what: str, contract: ModalityContract) -> str:
    said = f": {contract.detail}" if contract.detail else ""
    return f"worker {worker.worker_id} did not prove the {what} layout{said}"[:300]
