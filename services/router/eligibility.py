"""Which slots may be chosen at all, and what it is called when none may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.router.situation import Parameters, Prompt, SlotView
from services.router.slots import Slot


@dataclass(frozen=True, slots=True)
class Eligible:
    """The slots to choose from. ``busy`` counts slots that were left out for their load alone."""

    slots: tuple[SlotView, ...]
    busy: int
    unseen_block_size: bool = False
    """No slot has a block size the prompt has addresses for: these are chosen by load."""


def eligible(
    prompt: Prompt, slots: Sequence[SlotView], parameters: Parameters, excluded: frozenset[Slot] = frozenset()
) -> Eligible:
    """Slots that serve the model and the LoRA, hold a lease, are well, not draining, not excluded, and not busy.

    Slots whose block size the prompt has no addresses for are left out as long as others remain, and also if the
    others are busy only for now: they would be filled blindly. If there are no others they are better than nothing.
    """
    able = [
        slot
        for slot in slots
        if slot.model == prompt.model
        and slot.leased
        and slot.live
        and slot.healthy
        and slot.life.slot not in excluded
        and (not prompt.lora or prompt.lora in slot.loras)
    ]
    seen = [slot for slot in able if slot.block_size in prompt.addresses]
    unseen = bool(able) and not seen
    chosen = able if unseen else seen
    free = tuple(sorted((slot for slot in chosen if not _busy(slot, parameters)), key=lambda slot: slot.life))
    return Eligible(free, len(chosen) - len(free), unseen and bool(prompt.addresses))


def _busy(slot: SlotView, parameters: Parameters) -> bool:
    reported = slot.reported
    return (
        reported.get("kv_usage", 0.0) > parameters.busy_kv_usage
        or reported.get("waiting", 0.0) > parameters.busy_waiting
        or slot.worker_requests >= slot.capacity
    )
