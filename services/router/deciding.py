"""From an expanded request and the slots as they stand to the decision record. Pure: same inputs, same decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.decision import Candidate, Decision, DecisionMedia, Mode, Outcome, Position, RestOfCandidates
from schemas.expanded import Expanded
from schemas.media import MediaItem
from services.kv.reason import Reason
from services.router.choice import Choice, Scored, choose
from services.router.draw import seed_of
from services.router.eligibility import Eligible, eligible
from services.router.policies import Policy
from services.router.situation import Medium, Parameters, Prompt, SlotView
from services.router.slots import Slot

LISTED = 32
"""Candidates written one by one; of the rest, count and range (1,000 candidates would be 200 KB)."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a decision depends on beside the request and the slots."""

    policy: Policy
    parameters: Parameters
    now_ms: int
    expanded: Position
    attempt: int = 1
    excluded: frozenset[Slot] = frozenset()
    projection: Sequence[Position] = field(default=())
    router: str = ""


def prompt_of(expanded: Expanded, attempt: int = 1) -> Prompt:
    """The part of the request a choice looks at."""
    placed = sum(span.vision_tokens for span in expanded.spans)
    return Prompt(
        request=expanded.key,
        attempt=attempt,
        model=expanded.model,
        prompt_tokens=expanded.prompt_tokens,
        addresses=expanded.addresses,
        lora=expanded.lora,
        session_id=expanded.session_id,
        media=tuple(
            Medium(span.offset + span.length, span.vision_tokens, forwarded_identity(expanded, span.item))
            for span in expanded.spans
        ),
        unplaced_vision_tokens=max(0, expanded.vision_tokens - placed),
    )


def decide(expanded: Expanded, slots: Sequence[SlotView], given: Circumstances) -> Decision:
    """Choose a slot for one attempt and write down why."""
    prompt = prompt_of(expanded, given.attempt)
    able = eligible(prompt, slots, given.parameters, given.excluded)
    seed = seed_of(prompt.request, given.attempt)
    if not able.slots:
        outcome = Outcome.ALL_BUSY if able.busy else Outcome.NO_WORKER
        return _decision(expanded, given, seed, outcome, Mode.LOAD_ONLY, (expanded.reason, expanded.detail))
    choice = choose(prompt, able.slots, given.policy, given.parameters, seed)
    size = choice.chosen.terms.slot.block_size
    if size not in expanded.addresses:
        mode = Mode.LOAD_ONLY
    elif expanded.exact_tokens >= expanded.prompt_tokens:
        mode = Mode.EXACT
    else:
        mode = Mode.TEXT_PREFIX if expanded.addresses[size] else Mode.LOAD_ONLY
    return _decision(expanded, given, seed, Outcome.ROUTED, mode, _why(expanded, choice.chosen, able), choice)


def forwarded_identity(expanded: Expanded, item: int) -> int | None:
    """The identity the engine is told for a medium: only one that may travel and whose span is proven whole."""
    medium = expanded.media[item]
    if not medium.forward or medium.identity is None:
        return None
    proven = any(span.item == item and span.offset + span.length <= expanded.exact_tokens for span in expanded.spans)
    return medium.identity if proven else None


def _why(expanded: Expanded, chosen: Scored, able: Eligible) -> tuple[Reason | None, str | None]:
    """Why the decision knows less than everything: what the layout said, or what is true of the chosen slot alone."""
    slot = chosen.terms.slot
    if able.unseen_block_size and slot.block_size not in expanded.addresses:
        return Reason.BLOCK_SIZE_UNSEEN, f"the prompt has no addresses for blocks of {slot.block_size} tokens"
    if expanded.reason is None and slot.upper_bound and chosen.terms.reuse.confirmed.blocks:
        detail = f"the engine of {slot.life.worker_id} keeps several cache groups: the overlap is an upper bound"
        return Reason.HYBRID_CACHE, detail
    return expanded.reason, expanded.detail


def _decision(
    expanded: Expanded,
    given: Circumstances,
    seed: int,
    outcome: Outcome,
    mode: Mode,
    why: tuple[Reason | None, str | None],
    choice: Choice | None = None,
) -> Decision:
    chosen = choice.chosen.terms if choice is not None else None
    life = chosen.slot.life if chosen is not None else None
    size = chosen.slot.block_size if chosen is not None else 0
    return Decision(
        request_id=expanded.request_id,
        tenant=expanded.tenant,
        attempt=given.attempt,
        outcome=outcome,
        model=expanded.model,
        lora=expanded.lora,
        session_id=expanded.session_id,
        priority=expanded.priority,
        route_only=expanded.route_only,
        book=expanded.book,
        reply_to=expanded.reply_to,
        created_at_ms=expanded.created_at_ms,
        deadline_ms=expanded.deadline_ms,
        worker_id=life.worker_id if life else None,
        dp_rank=life.dp_rank if life else 0,
        epoch=life.epoch if life else None,
        mode=mode,
        reason=why[0],
        detail=why[1],
        variant=expanded.variant,
        block_size=size,
        prompt_tokens=expanded.prompt_tokens,
        exact_tokens=expanded.exact_tokens,
        total_blocks=expanded.prompt_tokens // size if size else 0,
        overlap_confirmed=chosen.reuse.confirmed.blocks if chosen else 0,
        overlap_predicted=chosen.reuse.predicted if chosen else 0,
        usable_blocks=chosen.reuse.usable if chosen else 0,
        predicted_tokens=chosen.reuse.usable * size if chosen else 0,
        addresses=expanded.addresses.get(size, []),
        candidates=_candidates(choice),
        rest=_rest(choice),
        ties=choice.ties if choice else 0,
        margin=choice.margin if choice else None,
        seed=seed,
        policy=given.policy.name,
        policy_version=given.policy.version,
        parameters=given.parameters.as_dict(),
        now_ms=given.now_ms,
        router=given.router,
        excluded=sorted(str(slot) for slot in given.excluded),
        projection=list(given.projection),
        expanded=given.expanded,
        media=[_media(expanded, item, medium) for item, medium in enumerate(expanded.media)],
        timings_ms=expanded.timings_ms,
    )


def _candidates(choice: Choice | None) -> list[Candidate]:
    if choice is None:
        return []
    return [_candidate(choice.chosen), *(_candidate(one) for one in choice.others[: LISTED - 1])]


def _rest(choice: Choice | None) -> RestOfCandidates:
    rest = choice.others[LISTED - 1 :] if choice is not None else ()
    if not rest:
        return RestOfCandidates()
    return RestOfCandidates(count=len(rest), min_cost=rest[0].cost, max_cost=rest[-1].cost)


def _candidate(scored: Scored) -> Candidate:
    terms = scored.terms
    slot = terms.slot
    return Candidate(
        worker_id=slot.life.worker_id,
        dp_rank=slot.life.dp_rank,
        epoch=slot.life.epoch,
        overlap_device=terms.reuse.confirmed.device,
        overlap_host=terms.reuse.confirmed.host,
        overlap_disk=terms.reuse.confirmed.disk,
        overlap_predicted=terms.reuse.predicted,
        active_prefill_tokens=slot.active_prefill_tokens,
        active_decode_blocks=slot.active_decode_blocks,
        active_requests=slot.active_requests,
        new_decode_blocks=terms.new_decode_blocks,
        vision_tokens=terms.reuse.vision_tokens,
        encoder_tokens=terms.reuse.encoder_tokens,
        prefill_cost=terms.prefill_cost,
        decode_cost=terms.decode_cost,
        request_cost=terms.request_cost,
        cost=scored.cost,
        uncertain=slot.uncertain,
        reported=dict(slot.reported),
    )


def _media(expanded: Expanded, item: int, medium: MediaItem) -> DecisionMedia:
    span = next((span for span in expanded.spans if span.item == item), None)
    return DecisionMedia(
        kind=medium.kind,
        identity=medium.identity,
        source=medium.source,
        forwarded=forwarded_identity(expanded, item) is not None,
        width=medium.width,
        height=medium.height,
        size_bytes=medium.size_bytes,
        frames=medium.frames,
        tokens=span.vision_tokens if span else None,
        offset=span.offset if span else None,
        host=medium.host,
        path=medium.path,
        url_hash=medium.url_hash,
        reason=medium.reason,
    )
