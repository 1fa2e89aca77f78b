"""KV events in vLLM 0.32's wire form: msgpack maps with a ``type``, in an array ``[ts, events, dp_rank]``."""

from __future__ import annotations

from typing import Any

import msgspec

from services.engine_sim.pool import BlockHash

MEDIUM = "GPU"
"""vLLM says GPU for its device blocks whatever the device is."""

ExtraKeys = tuple[Any, ...] | None
"""What beside the tokens went into one block's hash: LoRA name, ``(identifier, offset)`` per medium, cache salt."""


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True, frozen=True, gc=False):
    """Blocks that became full in one step for one request: a run chained from ``parent_block_hash``."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[ExtraKeys] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True, frozen=True, gc=False):
    """A cached block that was handed out for something else."""

    block_hashes: list[BlockHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, omit_defaults=True, frozen=True, gc=False):
    """The prefix cache was reset."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True, gc=False):
    """What one engine step changed. ``ts`` is wall time in seconds."""

    ts: float
    events: list[KvEvent]
    data_parallel_rank: int | None = None


_encoder = msgspec.msgpack.Encoder()


def encode_batch(ts: float, events: list[KvEvent], rank: int) -> bytes:
    """The payload frame of a batch."""
    return _encoder.encode(EventBatch(ts, events, rank))


def removed(block_hash: BlockHash) -> BlockRemoved:
    """The event of one evicted device block."""
    return BlockRemoved([block_hash], MEDIUM, group_idx=0)
