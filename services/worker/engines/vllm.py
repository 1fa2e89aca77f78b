"""vLLM's adapter: a ZMQ payload in, engine-neutral events out."""

from __future__ import annotations

from services.kv.tier import Tier
from services.worker.engines.events import Batch, Cause, Cleared, EngineHash, Event, Keys, Removed, Stored, Unrecognised
from services.worker.engines.vllm_keys import KeyReader
from services.worker.engines.wire import AllBlocksCleared, BlockRemoved, BlockStored, UnknownEvent, decode_batch

_TIERS: dict[str | None, Tier] = {
    None: Tier.DEVICE, "GPU": Tier.DEVICE, "CPU": Tier.HOST, "DISK": Tier.DISK, "STORAGE": Tier.DISK, "FS": Tier.DISK,
}
_PREFIX_KINDS = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Cache groups in which a resident prefix can be reused as it is."""


class VllmEvents:
    """Decodes the KV events of one vLLM engine."""

    def __init__(self, keys: KeyReader) -> None:
        self.keys = keys

    def decode(self, payload: bytes) -> Batch:
        """One batch. Raises EngineEventError when the payload is not a batch of KV events."""
        batch = decode_batch(payload)
        events: list[Event] = []
        gone: tuple[list[EngineHash], BlockRemoved] | None = None
        for event in batch.events:
            if not isinstance(event, BlockRemoved):
                gone = None
                events.append(self._neutral(event))
            elif gone is not None and _same_place(event, gone[1]):
                # One event a block is how an engine under eviction speaks: sixteen of them are one removal.
                gone[0].extend(event.block_hashes)
            else:
                gone = (event.block_hashes, event)
                events.append(Removed(event.block_hashes, _tier(event.medium, event.locality), event.group_idx))
        return Batch(batch.ts, events, batch.rank)

    def reset(self) -> None:
        """Nothing is remembered here."""

    def _neutral(self, event: BlockStored | AllBlocksCleared | UnknownEvent) -> Event:
        if isinstance(event, BlockStored):
            return self._stored(event)
        if isinstance(event, UnknownEvent):
            return Unrecognised(event.type)
        return Cleared()

    def _stored(self, event: BlockStored) -> Stored:
        root = event.parent_block_hash is None
        if event.lora_id is not None and event.lora_name is None:
            # 0.11 to 0.13 give a number only; which adapter it is can't be known from outside.
            keys = Keys(addressable=0, cause=Cause.UNNAMED_LORA)
        else:
            keys = self.keys.read(
                event.extra_keys, event.lora_name, root=root, token_ids=event.token_ids, block_size=event.block_size,
                blocks=len(event.block_hashes),
            )
        return Stored(
            event.block_hashes, event.parent_block_hash, event.token_ids, event.block_size,
            _tier(event.medium, event.locality), event.lora_name, keys, event.group_idx,
            event.kv_cache_spec_kind in _PREFIX_KINDS, event.session_id,
        )


def _same_place(one: BlockRemoved, other: BlockRemoved) -> bool:
    return one.medium == other.medium and one.group_idx == other.group_idx and one.locality == other.locality


def _tier(medium: str | None, locality: str | None) -> Tier | None:
    if locality is not None and locality.upper() == "REMOTE":
        return None
    return _TIERS.get(medium.upper() if medium is not None else None)
