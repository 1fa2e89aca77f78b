"""What sending a prompt to a slot costs, in blocks: the terms every policy chooses by (docs/design.md, section 9).

    prefill = prefill_scale * max(0, (active_prefill + max(0, prompt - cached) + cached + vision) / block_size - credit)
    decode  = blocks active on the slot + this prompt's blocks not active there
    cost    = prefill + decode + request_weight * requests

``cached`` are the tokens of the usable overlap, a host block counting 0.75 and a disk block 0.25; ``credit`` are its
blocks by the credits of their tiers. Blocks that are only predicted count as device blocks. ``vision`` are the tokens
of media that are not resident as a whole, by their own weight: the encoder must run for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.router.situation import Parameters, Prompt, SlotView
from services.router.slots import NO_OVERLAP, Overlap

HOST_TOKENS = 0.75
DISK_TOKENS = 0.25


@dataclass(slots=True)
class Terms:
    """Every number of one slot's cost."""

    slot: SlotView
    confirmed: Overlap
    usable: int
    """Usable blocks that events confirm."""
    counted: Overlap
    """Usable blocks by tier, predicted ones among the device's."""
    predicted: int
    vision_tokens: int
    new_prefill_tokens: int
    """Tokens this prompt would add to the slot's prefill, vision work included."""
    new_decode_blocks: int
    prefill_cost: float
    decode_cost: float
    request_cost: float
    cost: float


def cost_terms(prompt: Prompt, slot: SlotView, parameters: Parameters) -> Terms:
    """The terms of one slot."""
    size = slot.block_size
    confirmed = slot.overlap
    usable = prompt.usable(confirmed.blocks, size)
    predicted = max(slot.overlap_predicted, confirmed.blocks)
    counted = _with_predicted(confirmed, predicted).limited(prompt.usable(predicted, size)) if predicted else NO_OVERLAP
    device, host, disk = counted
    cached = (device + HOST_TOKENS * host + DISK_TOKENS * disk) * size
    credit = parameters.overlap_credit * device + parameters.host_credit * host + parameters.disk_credit * disk
    cached_tokens = (device + host + disk) * size
    vision = prompt.vision_tokens(cached_tokens)
    weighted_vision = parameters.vision_weight * vision
    prefill_tokens = slot.active_prefill_tokens + max(0.0, prompt.prompt_tokens - cached) + cached + weighted_vision
    prefill = parameters.prefill_scale * max(0.0, prefill_tokens / size - credit)
    new_blocks = prompt.blocks(size) - slot.active_prefix_blocks
    decode = float(slot.active_decode_blocks + new_blocks)
    requests = parameters.request_weight * slot.active_requests
    return Terms(
        slot=slot,
        confirmed=confirmed,
        usable=usable,
        counted=counted,
        predicted=predicted,
        vision_tokens=vision,
        new_prefill_tokens=round(max(0, prompt.prompt_tokens - cached_tokens) + weighted_vision),
        new_decode_blocks=new_blocks,
        prefill_cost=prefill,
        decode_cost=decode,
        request_cost=requests,
        cost=prefill + decode + requests,
    )


def _with_predicted(confirmed: Overlap, predicted: int) -> Overlap:
    """Predicted blocks lie past the confirmed ones and are on the device when their time comes."""
    return Overlap(predicted - confirmed.host - confirmed.disk, confirmed.host, confirmed.disk)
