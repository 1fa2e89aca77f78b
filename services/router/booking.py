"""What a decision books in the ledger. Read from the record alone, so that every router books the same."""

from __future__ import annotations

from schemas.decision import Decision, Outcome
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
    vision = decision.candidates[0].vision_tokens if decision.candidates else 0
    weight = decision.parameters.get("vision_weight", 1.0)
    return Booking(
        life=life,
        index=(decision.model, size),
        prefill_tokens=round(decision.prompt_tokens - cached + weight * vision),
        addresses=decision.addresses,
        unaddressed_blocks=max(0, decision.total_blocks - len(decision.addresses)),
        deadline_ms=decision.deadline_ms,
    )
