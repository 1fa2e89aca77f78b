"""vLLM's KV event batches as they stand on the wire, every form from 0.11 to 0.33 (docs/design.md, section 8).

A payload is MessagePack: ``[ts, [event, ...], dp_rank]``, the rank possibly absent or nil. An event is a map with
``"type"`` from 0.24 on and a positional array ``["BlockStored", ...]`` before. Fields were only ever appended, so the
oldest form is a prefix of the newest; unknown trailing fields and unknown map keys are ignored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from services.worker.engines.events import EngineEventError, EngineHash


class BlockStored(msgspec.Struct, tag="BlockStored", gc=False):
    """Full blocks entered the cache."""

    block_hashes: list[EngineHash]
    parent_block_hash: EngineHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, tag="BlockRemoved", gc=False):
    """Copies of blocks left the cache."""

    block_hashes: list[EngineHash]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    """The prefix cache was reset."""


class _StoredArray(BlockStored, tag="BlockStored", array_like=True, gc=False):
    """The positional form."""


class _RemovedArray(BlockRemoved, tag="BlockRemoved", array_like=True, gc=False):
    """The positional form."""


class _ClearedArray(AllBlocksCleared, tag="AllBlocksCleared", array_like=True, gc=False):
    """The positional form."""


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event whose type is none of the above."""

    type: str


WireEvent = BlockStored | BlockRemoved | AllBlocksCleared | UnknownEvent


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


class _Maps(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class _Arrays(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[_StoredArray | _RemovedArray | _ClearedArray]
    data_parallel_rank: int | None = None


@dataclass(frozen=True, slots=True)
class WireBatch:
    """One decoded payload."""

    ts: float
    events: Sequence[WireEvent]
    rank: int | None


_whole = (msgspec.msgpack.Decoder(_Maps), msgspec.msgpack.Decoder(_Arrays))
_batches = msgspec.msgpack.Decoder(_Batch)
_maps = msgspec.msgpack.Decoder(BlockStored | BlockRemoved | AllBlocksCleared)
_arrays = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)
_UNDECODABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
_KNOWN = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})


def decode_batch(payload: bytes) -> WireBatch:
    """Decode one ZMQ payload frame. Raises EngineEventError naming what was found instead of a batch or an event."""
    for decoder in _whole:
        # Nearly all batches hold known events of one form, and are read at once.
        with contextlib.suppress(*_UNDECODABLE):
            whole = decoder.decode(payload)
            return WireBatch(whole.ts, whole.events, whole.data_parallel_rank)
    try:
        batch = _batches.decode(payload)
    except _UNDECODABLE as error:
        raise EngineEventError(
            f"KV event payload of {len(payload)} bytes is not [ts, [events], rank] in MessagePack: {error}"
        ) from error
    return WireBatch(batch.ts, [_decode_event(bytes(raw)) for raw in batch.events], batch.data_parallel_rank)


def _decode_event(raw: bytes) -> WireEvent:
    head = raw[0]
    is_array = 0x90 <= head <= 0x9F or head in (0xDC, 0xDD)
    try:
        event: WireEvent = _arrays.decode(raw) if is_array else _maps.decode(raw)
    except _UNDECODABLE as error:
        name = _type_name(raw)
        if name is not None and name not in _KNOWN:
            return UnknownEvent(name)
        raise EngineEventError(f"KV event {name or 'without a type'} of {len(raw)} bytes: {error}") from error
    return event


def _type_name(raw: bytes) -> str | None:
    try:
        value = msgspec.msgpack.decode(raw)
    except _UNDECODABLE:
        return None
    name = value.get("type") if isinstance(value, dict) else value[0] if isinstance(value, list) and value else None
    return name if isinstance(name, str) else None
