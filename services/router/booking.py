"""What a decision books in the ledger. Read from the record alone, so that every router books the same."""

from __future__ import annotations

from schemas.decision import Decision, Outcome
from services.router.cost import vision_work
from services.router.ledger import Booking
from services.router.slots import SlotEpoch


def life_of(decision: Decision) -> SlotEpoch | None:
    """Where a decision sends its attempt; None for one that found no worker."""
    if decision.outcome is not Outcome.ROUTED or decision.worker_id is None or decision.epoch is None:
        return None
    return SlotEpoch(decision.worker_id, decision.dp_rank, decision.epoch)


def booking_of(decision: Decision) -> Booking | None:
    """Prefill work that is left after the cached prefix, vision work included, and all blocks. None: books nothing.

    A request that only asks for the route is not sent anywhere by us; it counts if its sender promised to report.
    """
    life = life_of(decision)
    if life is None or (decision.route_only and not decision.book):
        return None
    size = decision.block_size
    cached = min(decision.overlap_predicted, max(0, decision.prompt_tokens - 1) // size) * size
    vision = 0.0
    if decision.candidates:
        chosen, used = decision.candidates[0], decision.parameters
        weight, credit = used.get("vision_weight", 1.0), used.get("encoder_credit", 1.0)
        vision = vision_work(chosen.vision_tokens, chosen.encoder_tokens, weight, credit)
    return Booking(
        life=life,
        index=(decision.model, size),
        prefill_tokens=round(decision.prompt_tokens - cached + vision),
        addresses=decision.addresses,
        unaddressed_blocks=max(0, decision.total_blocks - len(decision.addresses)),
        deadline_ms=decision.deadline_ms,
    )
