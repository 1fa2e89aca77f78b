"""What an agent knows about its slots, as metrics."""

from __future__ import annotations

from services.kv.tier import TIERS
from services.runtime.metrics import (
    AGENT_ENCODER_OUTPUTS,
    AGENT_EVENT_BATCHES,
    AGENT_EVENT_LOSSES,
    AGENT_RESIDENT_BLOCKS,
    AGENT_STREAM_STALLED,
    AGENT_UNADDRESSED_BLOCKS,
)
from services.worker.slot import Slot


def observe(slot: Slot, *, encoded: int) -> None:
    """Set the gauges of one slot. ``encoded``: media whose encoder outputs it holds."""
    labels = (slot.name.worker_id, str(slot.name.dp_rank))
    translator = slot.translator
    AGENT_EVENT_BATCHES.labels(*labels).set(slot.batches)
    AGENT_ENCODER_OUTPUTS.labels(*labels).set(encoded)
    AGENT_EVENT_LOSSES.labels(*labels).set(slot.holes)
    AGENT_STREAM_STALLED.labels(*labels).set(int(slot.publisher.stalled))
    for tier in TIERS:
        AGENT_RESIDENT_BLOCKS.labels(*labels, tier.value).set(len(translator.resident.published(tier)))
    for cause, count in translator.unaddressed.items():
        AGENT_UNADDRESSED_BLOCKS.labels(*labels, cause.value).set(count)
