"""Engine events to addresses. The one place where an engine's own block hashes end (docs/design.md, sections 4 and 8).

A map says for each engine hash its address and the seed of its prompt: salt and LoRA stand at the root and are
inherited. References are counted per (engine hash, tier), because an engine keeps several physical copies of a block
(a fully cached prompt whose length is a multiple of the block size computes its last block again) and announces each
copy's coming and going.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from xxhash import xxh3_64_intdigest

from services.kv.address import chain, local_hash, seed_for, token_bytes_of
from services.kv.tier import TIERS, Tier
from services.worker.engines.events import Batch, Cause, Cleared, EngineHash, Keys, Removed, Stored, Unaddressable
from services.worker.engines.pages import PageGrouper
from services.worker.resident import ResidentSet


class TellsMedia(Protocol):
    """Knows whose the media are that an engine names in its own way. ``doubts`` grow when what it said may be wrong."""

    doubts: int

    def read(self, event: Stored, parent: int | None, seed: int, at: float) -> Keys:
        """The event's keys with its media told; what can't be told has no address. ``at``: the engine's time."""
        ...


class Translator:
    """Follows the KV events of one slot (one data-parallel rank of one engine) and keeps its resident set."""

    def __init__(
        self, block_size: int, resident: ResidentSet | None = None, media: TellsMedia | None = None
    ) -> None:
        if block_size <= 0:
            raise ValueError(f"block_size is {block_size}, expected a positive number of tokens")
        self.block_size = block_size
        self.resident = ResidentSet() if resident is None else resident
        self.unaddressed: Counter[Cause] = Counter()
        """Announced blocks that got no address, by cause."""
        self.unmatched = 0
        """Copies that went without having been seen to come."""
        self.unrecognised: Counter[str] = Counter()
        """Events of unknown types, by type."""
        self._media = media
        self._doubts = 0 if media is None else media.doubts
        self._at = 0.0
        self._known: dict[EngineHash, tuple[int, int]] = {}
        self._copies: dict[Tier, dict[EngineHash, int]] = {tier: {} for tier in TIERS}
        self._other_groups: set[int | None] = set()
        self._watched: set[int] = set()
        self.seen: set[int] = set()
        """Watched identities that came back in an event."""
        self.on_reset: Callable[[], None] = lambda: None
        """Told when nothing is known to be resident any more."""

    @property
    def unknown(self) -> int:
        """Announced blocks that got no address, so far."""
        return self.unaddressed.total()

    @property
    def hybrid(self) -> bool:
        """Whether the engine keeps other cache groups too: it reuses a prefix only where all of them have it."""
        return bool(self._other_groups)

    def watch(self, identity: int) -> None:
        """Note in ``seen`` when a block with this media identity is stored."""
        self._watched.add(identity)

    def unwatch(self, identity: int) -> None:
        """Forget a watched identity."""
        self._watched.discard(identity)
        self.seen.discard(identity)

    def apply(self, batch: Batch) -> None:
        """Follow one batch; the resident set logs what changed."""
        self._at = batch.at
        for event in batch.events:
            if isinstance(event, Stored):
                self._stored(event)
            elif isinstance(event, Removed):
                self._removed(event)
            elif isinstance(event, Cleared):
                self.reset()
            elif isinstance(event, Unaddressable):
                self.unaddressed[event.cause] += event.blocks
            else:
                self.unrecognised[event.type] += 1

    def reset(self) -> None:
        """Nothing is known to be resident any more."""
        self._known.clear()
        for copies in self._copies.values():
            copies.clear()
        self.resident.clear()
        self.on_reset()

    def _stored(self, event: Stored) -> None:
        hashes = event.hashes
        tier = event.tier
        if not event.reusable:
            self._other_groups.add(event.group)
            self.unaddressed[Cause.OTHER_GROUP] += len(hashes)
            return
        if tier is None:
            self.unaddressed[Cause.OTHER_PLACE] += len(hashes)
            return
        if not event.token_ids:
            self._copied(hashes, tier)
            return
        if event.block_size != self.block_size or len(event.token_ids) != len(hashes) * self.block_size:
            self.unaddressed[Cause.MISFIT] += len(hashes)
            return
        keys = event.keys
        if event.parent is None:
            parent, seed = None, seed_for(event.lora, keys.salt)
        else:
            known = self._known.get(event.parent)
            if known is None:
                self.unaddressed[Cause.UNKNOWN_PARENT] += len(hashes)
                return
            parent, seed = known
        if keys.named is not None and self._media is not None:
            keys = self._told(event, parent, seed)
        count = len(hashes) if keys.addressable is None else keys.addressable
        if count < len(hashes):
            self.unaddressed[keys.cause or Cause.MALFORMED_KEYS] += len(hashes) - count
        try:
            data = token_bytes_of(event.token_ids)
        except OverflowError:
            self.unaddressed[Cause.MISFIT] += count
            return
        self._chain(hashes[:count], keys, data, (parent, seed), tier)

    def _told(self, event: Stored, parent: int | None, seed: int) -> Keys:
        """The keys with media told; those of an event with unusable token ids are used nowhere."""
        media = self._media
        if media is None:
            return event.keys
        try:
            keys = media.read(event, parent, seed, self._at)
        except OverflowError:
            return event.keys
        if media.doubts != self._doubts:
            self._doubts = media.doubts
            self.reset()
            return Keys(addressable=0, cause=Cause.AMBIGUOUS_MEDIA)
        return keys

    def _chain(
        self, hashes: list[EngineHash], keys: Keys, data: bytes, root: tuple[int | None, int], tier: Tier
    ) -> None:
        (parent, seed), media = root, keys.media
        known, copies, add = self._known, self._copies[tier], self.resident.add
        width = self.block_size * 4
        for block, engine_hash in enumerate(hashes):
            entry = known.get(engine_hash)
            if entry is None:
                piece = data[block * width : block * width + width]
                identities = media[block] if media else ()
                local = local_hash(piece, identities, seed) if identities else xxh3_64_intdigest(piece, seed)
                entry = known[engine_hash] = (chain(parent, local), seed)
            held = copies.get(engine_hash, 0)
            copies[engine_hash] = held + 1
            if not held:
                add(entry[0], parent, tier)
            parent = entry[0]
        if media and self._watched:
            for identities in media:
                self.seen.update(self._watched.intersection(identities))

    def _copied(self, hashes: list[EngineHash], tier: Tier) -> None:
        """Blocks named by hash alone: known from another tier, or not at all."""
        copies = self._copies[tier]
        for engine_hash in hashes:
            entry = self._known.get(engine_hash)
            if entry is None:
                self.unaddressed[Cause.UNKNOWN_BLOCK] += 1
                continue
            held = copies.get(engine_hash, 0)
            copies[engine_hash] = held + 1
            if not held:
                self.resident.add(entry[0], None, tier)

    def _removed(self, event: Removed) -> None:
        if event.tier is None or event.group in self._other_groups:
            return
        copies = self._copies[event.tier]
        for engine_hash in event.hashes:
            held = copies.get(engine_hash)
            if held is None:
                self.unmatched += 1
            elif held > 1:
                copies[engine_hash] = held - 1
            else:
                del copies[engine_hash]
                self.resident.remove(self._known[engine_hash][0], event.tier)
                for others in self._copies.values():
                    if engine_hash in others:
                        break
                else:
                    del self._known[engine_hash]


class GroupingTranslator(Translator):
    """For engines that announce pages smaller than the blocks that are routed with."""

    def __init__(self, grouper: PageGrouper) -> None:
        super().__init__(grouper.block_size)
        self._grouper = grouper

    def apply(self, batch: Batch) -> None:
        """Follow one batch of pages."""
        for event in batch.events:
            super().apply(Batch(batch.at, self._grouper.grouped(event), batch.rank))

    def reset(self) -> None:
        """Nothing is known to be resident any more."""
        self._grouper.clear()
        super().reset()
