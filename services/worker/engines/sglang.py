"""SGLang's adapter: a ZMQ payload in, engine-neutral events of pages out. Pure.

Written from the documented wire form and tested against a simulated server that speaks it; not run on the real engine.
Events are vLLM's oldest arrays: no media keys, no salt. So what a request with a salt announces can't be told from
the same prompt without, and roots that come while one runs get no address.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.kv.tier import Tier
from services.worker.engines.events import Batch, Cause, Cleared, Event, Keys, Removed, Stored, Unrecognised
from services.worker.engines.wire import BlockRemoved, BlockStored, UnknownEvent, WireEvent, decode_batch

_TIERS: dict[str | None, Tier] = {
    None: Tier.DEVICE, "GPU": Tier.DEVICE, "CPU": Tier.HOST, "CPU_PINNED": Tier.HOST, "CPU_TIER1": Tier.HOST,
    "CPU_TIER2": Tier.HOST, "DISK": Tier.DISK,
}  # fmt: skip


@dataclass(slots=True)
class SglangEvents:
    """Decodes the KV events of one SGLang engine."""

    salted_in_flight: Callable[[], bool] = bool

    def decode(self, payload: bytes) -> Batch:
        """One batch. Raises EngineEventError when the payload is not a batch of KV events."""
        batch = decode_batch(payload)
        return Batch(batch.ts, [self._neutral(event) for event in batch.events], batch.rank)

    def reset(self) -> None:
        """Nothing is remembered here."""

    def _neutral(self, event: WireEvent) -> Event:
        if isinstance(event, BlockStored):
            return self._stored(event)
        if isinstance(event, BlockRemoved):
            return Removed(event.block_hashes, _tier(event.medium))
        if isinstance(event, UnknownEvent):
            return Unrecognised(event.type)
        return Cleared()

    def _stored(self, event: BlockStored) -> Stored:
        keys = Keys()
        if event.lora_id is not None and event.lora_name is None:
            keys = Keys(addressable=0, cause=Cause.UNNAMED_LORA)
        elif event.parent_block_hash is None and self.salted_in_flight():
            keys = Keys(addressable=0, cause=Cause.AMBIGUOUS_KEYS)
        return Stored(
            event.block_hashes, event.parent_block_hash, event.token_ids, event.block_size, _tier(event.medium),
            event.lora_name, keys,
        )  # fmt: skip


def _tier(medium: str | None) -> Tier | None:
    return _TIERS.get(medium.upper() if medium is not None else None)
