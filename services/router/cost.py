"""What sending a prompt to a slot costs, in blocks: the terms every policy chooses by (docs/design.md, section 9).

    prefill = prefill_scale * max(0, (active_prefill + max(0, prompt - cached) + cached + vision) / block_size - credit)
    decode  = blocks active on the slot + this prompt's blocks not active there
    cost    = prefill + decode + request_weight * requests

``cached`` are the tokens of the usable overlap, a host block counting 0.75 and a disk block 0.25; ``credit`` are its
blocks by the credits of their tiers. Blocks that are only predicted count as device blocks. ``vision`` are the tokens
of media that are not resident as a whole, by their own weight: the encoder must run for them, unless the slot still
holds what it made of them: such tokens are taken off by the encoder credit (1: they cost no vision work at all).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.router.situation import Parameters, Prompt, SlotView
from services.router.slots import NO_OVERLAP, Overlap

HOST_TOKENS = 0.75
DISK_TOKENS = 0.25


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a prompt finds on a slot, and what is left to do there. Slots that hold the same of it share one."""

    confirmed: Overlap
    usable: int
    """Usable blocks that events confirm."""
    counted: Overlap
    """Usable blocks by tier, predicted ones among the device's."""
    predicted: int
    credit: float
    """Blocks taken off the prefill."""
    vision_tokens: int
    encoder_tokens: int
    """Of the vision tokens: those of media whose encoder output is held."""
    prefill_tokens: float
    """Tokens of the prompt in the prefill term, vision work included; cached blocks of dear tiers count in part."""
    new_prefill_tokens: int
    """Tokens this prompt would add to the slot's prefill, vision work included."""


@dataclass(slots=True)
class Terms:
    """Every number of one slot's cost."""

    slot: SlotView
    reuse: Reuse
    new_decode_blocks: int
    prefill_cost: float
    decode_cost: float
    request_cost: float
    cost: float


def cost_terms(prompt: Prompt, slots: Sequence[SlotView], parameters: Parameters) -> list[Terms]:
    """The terms of all slots. Of a thousand most hold nothing of the prompt: what is the same is reckoned once."""
    known: dict[tuple[int, Overlap, int, frozenset[int]], Reuse] = {}
    scale, weight = parameters.prefill_scale, parameters.request_weight
    found: list[Terms] = []
    for slot in slots:
        size = slot.block_size
        held = (size, slot.overlap, slot.overlap_predicted, slot.encoder)
        reuse = known.get(held)
        if reuse is None:
            reuse = known[held] = _reuse(prompt, slot, parameters)
        prefill = scale * max(0.0, (slot.active_prefill_tokens + reuse.prefill_tokens) / size - reuse.credit)
        new_blocks = prompt.prompt_tokens // size - slot.active_prefix_blocks
        decode = float(slot.active_decode_blocks + new_blocks)
        requests = weight * slot.active_requests
        found.append(Terms(slot, reuse, new_blocks, prefill, decode, requests, prefill + decode + requests))
    return found


def _reuse(prompt: Prompt, slot: SlotView, parameters: Parameters) -> Reuse:
    size = slot.block_size
    confirmed = slot.overlap
    predicted = max(slot.overlap_predicted, confirmed.blocks)
    counted = _with_predicted(confirmed, predicted).limited(prompt.usable(predicted, size)) if predicted else NO_OVERLAP
    device, host, disk = counted
    cached = (device + HOST_TOKENS * host + DISK_TOKENS * disk) * size
    cached_tokens = counted.blocks * size
    vision = prompt.vision_tokens(cached_tokens)
    encoded = prompt.encoder_tokens(cached_tokens, slot.encoder)
    weighted_vision = vision_work(vision, encoded, parameters.vision_weight, parameters.encoder_credit)
    return Reuse(
        confirmed=confirmed,
        usable=prompt.usable(confirmed.blocks, size),
        counted=counted,
        predicted=predicted,
        credit=parameters.overlap_credit * device + parameters.host_credit * host + parameters.disk_credit * disk,
        vision_tokens=vision,
        encoder_tokens=encoded,
        prefill_tokens=max(0.0, prompt.prompt_tokens - cached) + cached + weighted_vision,
        new_prefill_tokens=round(max(0, prompt.prompt_tokens - cached_tokens) + weighted_vision),
    )


def vision_work(vision_tokens: int, encoder_tokens: int, weight: float, credit: float) -> float:
    """Prefill tokens that the vision encoder's work counts as."""
    return weight * max(0.0, vision_tokens - credit * encoder_tokens)


def _with_predicted(confirmed: Overlap, predicted: int) -> Overlap:
    """Predicted blocks lie past the confirmed ones and are on the device when their time comes."""
    return Overlap(predicted - confirmed.host - confirmed.disk, confirmed.host, confirmed.disk)
