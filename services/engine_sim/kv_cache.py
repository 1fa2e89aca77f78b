"""Block tables of requests over the pool, and the KV events they cause. Pure; after vLLM's ``KVCacheManager``."""

from __future__ import annotations

from services.engine_sim.events import MEDIUM, AllBlocksCleared, BlockStored, KvEvent, removed
from services.engine_sim.hashing import BlockHasher
from services.engine_sim.pool import Block, BlockHash, BlockPool
from services.engine_sim.request import EngineRequest


class KvCache:
    """Prefix caching for one data-parallel rank: look up, allocate, commit full blocks, free.

    Events pile up in the order in which vLLM announces them and are taken once per step.
    """

    def __init__(self, num_blocks: int, hasher: BlockHasher) -> None:
        self.hasher = hasher
        self.block_size = hasher.block_size
        self.pool = BlockPool(num_blocks, self._on_removed)
        self.queried_tokens = 0
        self.hit_tokens = 0
        self._events: list[KvEvent] = []

    def look_up(self, request: EngineRequest) -> list[Block]:
        """Cached blocks of the request's prefix. The last token is always computed, so the last block of a fully
        cached prompt whose length is a multiple of the block size is not used (and is announced again).
        """
        self.hasher.extend(request)
        usable = (len(request.token_ids) - 1) // self.block_size
        hit = self.pool.longest_hit(request.block_hashes[:usable])
        if hit and request.report_full:
            self._events.append(self._stored(request, 0, len(hit)))
        return hit

    def allocate(
        self, request: EngineRequest, new_tokens: int, hit: list[Block] | None = None, *, whole: bool = False
    ) -> bool:
        """Hold the blocks for ``new_tokens`` more tokens of the request, after its ``hit`` if it just starts.

        ``whole``: only if the request's every token would fit (how new requests are admitted). Returns False, and
        changes nothing, if too few blocks are free. Blocks that these tokens fill are committed and announced.
        """
        hit = hit or []
        total = request.computed_tokens + len(hit) * self.block_size + new_tokens
        if not hit and total < (request.committed_blocks + 1) * self.block_size and total <= self._held_tokens(request):
            return True  # nearly every decode step: no block is needed and none becomes full
        # Hit blocks that are free leave the queue too, though they need no new block.
        idle = sum(1 for block in hit if block.references == 0)
        held = len(request.blocks) + len(hit)
        if whole and self._blocks_for(len(request.token_ids)) - held + idle > self.pool.free_count:
            return False
        count = max(0, self._blocks_for(total) - held)
        if count + idle > self.pool.free_count:
            return False
        if hit:
            self.pool.touch(hit)
            request.blocks += hit
            request.committed_blocks = len(hit)
        request.blocks += self.pool.allocate(count)
        self._commit(request, min(total, len(request.token_ids)))
        return True

    def free(self, request: EngineRequest) -> None:
        """Give the request's blocks back, the tail first, so that the root of a prefix is evicted last."""
        self.pool.free(reversed(request.blocks))
        request.blocks = []
        request.committed_blocks = 0

    def reset(self) -> bool:
        """Forget the prefix cache if no request holds a block. Announced with the next step's events."""
        if not self.pool.reset():
            return False
        self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[KvEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def count_look_up(self, request: EngineRequest, hit: list[Block]) -> None:
        """Book an admitted request's look-up for the prefix-cache counters, in tokens."""
        if request.preemptions == 0:
            self.queried_tokens += len(request.token_ids)
            self.hit_tokens += len(hit) * self.block_size

    def _commit(self, request: EngineRequest, tokens: int) -> None:
        first = request.committed_blocks
        last = tokens // self.block_size
        if first >= last:
            return
        self.hasher.extend(request)
        for index in range(first, last):
            self.pool.cache(request.blocks[index], request.block_hashes[index])
        request.committed_blocks = last
        self._events.append(self._stored(request, first, last))

    def _stored(self, request: EngineRequest, first: int, last: int) -> BlockStored:
        size = self.block_size
        return BlockStored(
            block_hashes=request.block_hashes[first:last],
            parent_block_hash=request.block_hashes[first - 1] if first else None,
            token_ids=request.token_ids[first * size : last * size],
            block_size=size,
            lora_id=request.lora_id,
            medium=MEDIUM,
            lora_name=request.lora_name,
            extra_keys=request.extra_keys[first:last],
            group_idx=0,
            kv_cache_spec_kind="full_attention",
            session_id=request.session_id,
        )

    def _held_tokens(self, request: EngineRequest) -> int:
        return len(request.blocks) * self.block_size

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _on_removed(self, block_hash: BlockHash) -> None:
        self._events.append(removed(block_hash))
