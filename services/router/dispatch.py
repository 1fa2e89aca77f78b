"""What follows from a decision: work for the agent, or the route for whoever only asked. Pure."""

from __future__ import annotations

from schemas.decision import Decision, Mode
from schemas.expanded import Expanded
from schemas.media import MediaItem
from schemas.work import Response, SampledFrames, Work, WorkMedia
from schemas.worker import Contract
from services.router.booking import life_of
from services.router.deciding import forwarded_identity


def work_of(expanded: Expanded, decision: Decision, contract: Contract | None = None) -> Work:
    """The work for one attempt, on a worker of this contract. Raises ValueError for a decision without worker."""
    life = life_of(decision)
    if life is None:
        raise ValueError(f"decision {decision.key}#{decision.attempt} is {decision.outcome}: there is no work")
    return Work(
        request_id=expanded.request_id,
        tenant=expanded.tenant,
        attempt=decision.attempt,
        worker_id=life.worker_id,
        dp_rank=life.dp_rank,
        epoch=life.epoch,
        model=expanded.model,
        lora=expanded.lora,
        cache_salt=expanded.cache_salt,
        session_id=expanded.session_id,
        priority=expanded.priority,
        stream=expanded.stream,
        body=expanded.body,
        body_claim=expanded.body_claim,
        media=[_work_medium(expanded, item, medium) for item, medium in enumerate(expanded.media)],
        addresses=_known_by(expanded, decision.block_size, contract),
        reply_to=expanded.reply_to,
        deadline_ms=expanded.deadline_ms,
        created_at_ms=expanded.created_at_ms,
        decided_at_ms=decision.now_ms,
    )


def _known_by(expanded: Expanded, block_size: int, contract: Contract | None) -> list[int]:
    """Addresses where the agent knows media by the prompt they came with: of all its blocks, to tell it from others.

    Where events say whose they are, those up to the last medium do.
    """
    ways = set() if contract is None else {contract.image.binding, contract.video.binding} - {""}
    if not ways or not expanded.spans:
        return []
    last = max(span.offset + span.length for span in expanded.spans)
    return expanded.addresses.get(block_size, [])[: -(-last // block_size) if ways == {"session"} else None]


def _work_medium(expanded: Expanded, item: int, medium: MediaItem) -> WorkMedia:
    identity = forwarded_identity(expanded, item)
    span = next((span for span in expanded.spans if span.item == item), None) if identity is not None else None
    return WorkMedia(
        kind=medium.kind,
        message=medium.message,
        part=medium.part,
        identity=identity,
        claim=medium.claim,
        frames=_frames_of(medium) if identity is not None else None,
        tokens=span.length if span is not None else None,
        end=span.offset + span.length if span is not None else None,
    )


def _frames_of(medium: MediaItem) -> SampledFrames | None:
    claim, fps, total, duration = medium.frames_claim, medium.fps, medium.total_frames, medium.duration
    if claim is None or fps is None or total is None or duration is None or medium.frame_indices is None:
        return None
    return SampledFrames(claim=claim, indices=medium.frame_indices, fps=fps, total_frames=total, duration=duration)


def route_answer(decision: Decision) -> Response:
    """The one and final piece for a request that only asks where it would go."""
    return Response(
        request_id=decision.request_id,
        tenant=decision.tenant,
        attempt=decision.attempt,
        worker_id=decision.worker_id,
        dp_rank=decision.dp_rank,
        epoch=decision.epoch,
        index=0,
        final=True,
        route=route_of(decision),
    )


def route_of(decision: Decision) -> dict[str, object]:
    """A decision as its asker sees it: where, how much is cached there, how sure that is, what else was possible."""
    return {
        "worker_id": decision.worker_id,
        "dp_rank": decision.dp_rank,
        "epoch": decision.epoch,
        "model": decision.model,
        "overlap_blocks": decision.overlap_confirmed,
        "overlap_predicted": decision.overlap_predicted,
        "usable_blocks": decision.usable_blocks,
        "total_blocks": decision.total_blocks,
        "block_size": decision.block_size,
        "prompt_tokens": decision.prompt_tokens,
        "predicted_cached_tokens": decision.predicted_tokens,
        "exact": decision.mode is Mode.EXACT,
        "exact_tokens": decision.exact_tokens,
        "mode": decision.mode.value,
        "reason": decision.reason.value if decision.reason is not None else None,
        "policy": decision.policy,
        "booked": decision.book,
        "candidates": [
            {
                "worker_id": candidate.worker_id,
                "dp_rank": candidate.dp_rank,
                "overlap_blocks": candidate.overlap_device + candidate.overlap_host + candidate.overlap_disk,
                "overlap_predicted": candidate.overlap_predicted,
                "encoder_tokens": candidate.encoder_tokens,
                "cost": candidate.cost,
            }
            for candidate in decision.candidates
        ],
    }
