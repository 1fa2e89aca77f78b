"""TensorRT-LLM's adapter: JSON events as they are polled in, engine-neutral events out. Pure.

Written from the documented form and tested against a simulated server that speaks it; not run on the real engine.
A payload is ``{"at": seconds, "event": {"event_id": n, "data": {...}}}``: the time is that of the poll. The engine
announces partial blocks too, and says in ``removed`` not from which level: so the levels are remembered here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from services.kv.identity import parse_engine_uuid
from services.kv.tier import Tier
from services.worker.engines.events import (
    Batch,
    Cause,
    Cleared,
    EngineEventError,
    EngineHash,
    Event,
    Keys,
    Removed,
    Stored,
    Unaddressable,
    Unrecognised,
)

_LEVELS = {0: Tier.DEVICE, 1: Tier.HOST}


class _Token(msgspec.Struct):
    token_id: int
    token_extra_id: int | None = None


class _MediaKey(msgspec.Struct):
    hash: str
    type: str = "mm_key"
    start_offset: int = 0


class _Block(msgspec.Struct):
    block_hash: int | str
    tokens: list[_Token] = []
    cache_level: int = 0
    mm_keys: list[_MediaKey] | None = None
    lora_id: int | None = None


class _Levels(msgspec.Struct):
    old_value: int
    new_value: int


class _StoredData(msgspec.Struct):
    blocks: list[_Block]
    parent_hash: int | str | None = None


class _RemovedData(msgspec.Struct):
    block_hashes: list[int | str]


class _UpdatedData(msgspec.Struct):
    block_hash: int | str
    cache_level: _Levels | None = None


class _Event(msgspec.Struct):
    event_id: int
    data: dict[str, Any]


class _Polled(msgspec.Struct):
    at: float
    event: _Event


_polled = msgspec.json.Decoder(_Polled)


class TrtllmEvents:
    """Decodes the KV events of one TensorRT-LLM engine, in order.

    ``vocabulary`` is the tokenizer's size: ids from there on stand for a medium's tokens. ``placeholder`` is what
    they are in a canonical prompt, ``media_tokens`` are the ids that stand in media only.
    """

    def __init__(
        self, block_size: int, *, vocabulary: int, placeholder: int | None = None,
        media_tokens: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        self._block_size = block_size
        self._vocabulary = vocabulary
        self._placeholder = placeholder
        self._media_tokens = media_tokens
        self._tiers: dict[EngineHash, Tier] = {}

    def decode(self, payload: bytes) -> Batch:
        """One polled event. Raises EngineEventError when it is not of the documented form."""
        try:
            polled = _polled.decode(payload)
            return Batch(polled.at, list(self._neutral(polled.event.data)))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise EngineEventError(f"KV event of {len(payload)} bytes is not of a known form: {error}") from error

    def reset(self) -> None:
        """Nothing is known to be resident any more."""
        self._tiers.clear()

    def _neutral(self, data: dict[str, Any]) -> Iterator[Event]:
        kind = data.get("type")
        if kind == "stored":
            yield from self._stored(msgspec.convert(data, _StoredData))
        elif kind == "removed":
            for block_hash in msgspec.convert(data, _RemovedData).block_hashes:
                tier = self._tiers.pop(_key(block_hash), None)
                if tier is not None:
                    yield Removed([_key(block_hash)], tier)
        elif kind == "updated":
            yield from self._moved(msgspec.convert(data, _UpdatedData))
        elif kind == "created":
            # The pools are new: nothing is in them.
            self.reset()
            yield Cleared()
        else:
            yield Unrecognised(str(kind))

    def _moved(self, data: _UpdatedData) -> Iterator[Event]:
        key = _key(data.block_hash)
        old = self._tiers.get(key)
        if data.cache_level is None or old is None:
            return
        new = _LEVELS.get(data.cache_level.new_value)
        if new is old:
            return
        if new is not None:
            self._tiers[key] = new
            yield Stored([key], None, [], self._block_size, new)
        else:
            del self._tiers[key]
        yield Removed([key], old)

    def _stored(self, data: _StoredData) -> Iterator[Event]:
        parent = None if data.parent_hash in (None, 0) else _key(data.parent_hash)
        for block in data.blocks:
            if len(block.tokens) != self._block_size:
                # Partial blocks are announced too; nothing stands on one.
                continue
            key, tier = _key(block.block_hash), _LEVELS.get(block.cache_level)
            if key not in self._tiers:
                read = self._read(block)
                if tier is None or isinstance(read, Cause):
                    yield Unaddressable(read if isinstance(read, Cause) else Cause.OTHER_PLACE, 1)
                else:
                    tokens, identities = read
                    self._tiers[key] = tier
                    keys = Keys(media=[identities] if identities else None)
                    yield Stored([key], parent, tokens, self._block_size, tier, keys=keys)
            parent = key

    def _read(self, block: _Block) -> tuple[list[int], tuple[int, ...]] | Cause:
        if block.lora_id is not None:
            return Cause.UNNAMED_LORA
        tokens = [token.token_id for token in block.tokens]
        media = [token >= self._vocabulary for token in tokens]
        if not block.mm_keys:
            foreign = any(media) or any(token.token_extra_id for token in block.tokens)
            unnamed = foreign or not self._media_tokens.isdisjoint(tokens)
            return Cause.UNNAMED_MEDIA if unnamed else (tokens, ())
        if self._placeholder is None:
            return Cause.UNNAMED_MEDIA
        identities = tuple(parse_engine_uuid(key.hash) for key in block.mm_keys)
        placeholder = self._placeholder
        return [placeholder if is_media else token for token, is_media in zip(tokens, media, strict=True)], identities


def _key(block_hash: int | str | None) -> EngineHash:
    return block_hash.encode() if isinstance(block_hash, str) else block_hash or 0
