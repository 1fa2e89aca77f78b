"""The KV block pool of a vLLM v1 engine: which blocks exist, who holds them, which are cached, which goes next.

Pure. The rules are vLLM 0.32's ``v1/core/block_pool.py``:

* block 0 is the null block and is never handed out;
* a free block keeps its hash and can be hit again until it is handed out, which evicts it;
* freed blocks that have a hash join the tail of the free queue (least recently used first out), those without one
  go to its front, so that an unfinished block is reused before anything worth keeping;
* one hash may stand for several physical copies: the first one cached answers look-ups, each eviction is announced.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

BlockHash = int | bytes
"""What names a full block and its whole prefix: an unsigned 64-bit number or 32 bytes."""


@dataclass(slots=True, eq=False)
class Block:
    """One physical block. ``block_hash`` is set while it is full and may be hit."""

    block_id: int
    references: int = 0
    block_hash: BlockHash | None = None


class PoolExhausted(ValueError):
    """More blocks were asked for than are free."""


class BlockPool:
    """``num_blocks`` blocks of KV memory, the null block among them.

    ``on_removed`` is told the hash of every cached block that is evicted, in the order of eviction.
    """

    def __init__(self, num_blocks: int, on_removed: Callable[[BlockHash], None] | None = None) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks}, expected at least 2: block 0 is the null block")
        self.num_blocks = num_blocks
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._free: OrderedDict[int, Block] = OrderedDict((block.block_id, block) for block in self.blocks[1:])
        self._cached: dict[BlockHash, Block | dict[int, Block]] = {}
        self._on_removed = on_removed or (lambda _: None)

    @property
    def free_count(self) -> int:
        """Blocks that can be handed out, cached ones among them."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks that some request holds, 0 to 1."""
        return 1.0 - len(self._free) / (self.num_blocks - 1)

    @property
    def cached_hashes(self) -> frozenset[BlockHash]:
        """Every hash that would be hit now."""
        return frozenset(self._cached)

    def free_order(self) -> list[int]:
        """Ids of the free blocks, the next to be handed out first."""
        return list(self._free)

    def longest_hit(self, hashes: Sequence[BlockHash]) -> list[Block]:
        """The cached blocks of the longest leading run of ``hashes`` that is cached. Changes nothing."""
        hit: list[Block] = []
        for block_hash in hashes:
            entry = self._cached.get(block_hash)
            if entry is None:
                break
            hit.append(entry if isinstance(entry, Block) else next(iter(entry.values())))
        return hit

    def touch(self, blocks: Iterable[Block]) -> None:
        """Take another reference on cached blocks; free ones leave the free queue."""
        for block in blocks:
            if block.references == 0:
                del self._free[block.block_id]
            block.references += 1

    def allocate(self, count: int) -> list[Block]:
        """Hand out ``count`` blocks from the front of the free queue, evicting what they cached.

        Raises PoolExhausted when fewer are free; nothing is handed out then.
        """
        if count > len(self._free):
            raise PoolExhausted(f"{count} blocks were asked for, {len(self._free)} of {self.num_blocks - 1} are free")
        taken = []
        for _ in range(count):
            _, block = self._free.popitem(last=False)
            if block.block_hash is not None:
                self._evict(block)
            block.references = 1
            taken.append(block)
        return taken

    def cache(self, block: Block, block_hash: BlockHash) -> None:
        """Name a held, full block, so that others hit it. A second copy of a hash is kept beside the first."""
        if block.references == 0:
            raise ValueError(f"block {block.block_id} is free: only a held block can become full")
        if block.block_hash is not None:
            raise ValueError(f"block {block.block_id} already has a hash: a full block never changes")
        block.block_hash = block_hash
        entry = self._cached.get(block_hash)
        if entry is None:
            self._cached[block_hash] = block
        elif isinstance(entry, Block):
            self._cached[block_hash] = {entry.block_id: entry, block.block_id: block}
        else:
            entry[block.block_id] = block

    def free(self, blocks: Iterable[Block]) -> None:
        """Give back one reference on each block, in the order in which they should be evicted (tail first)."""
        keep: list[Block] = []
        reuse: list[Block] = []
        for block in blocks:
            if block.references <= 0:
                raise ValueError(f"block {block.block_id} was freed more often than it was taken")
            block.references -= 1
            if block.references == 0:
                (reuse if block.block_hash is None else keep).append(block)
        for block in reversed(reuse):
            self._free[block.block_id] = block
            self._free.move_to_end(block.block_id, last=False)
        for block in keep:
            self._free[block.block_id] = block

    def reset(self) -> bool:
        """Forget every hash, if no block is held; else change nothing. Returns whether it was done."""
        if len(self._free) != self.num_blocks - 1:
            return False
        self._cached.clear()
        for block in self.blocks:
            block.block_hash = None
        return True

    def _evict(self, block: Block) -> None:
        block_hash = block.block_hash
        assert block_hash is not None
        entry = self._cached[block_hash]
        if isinstance(entry, Block):
            del self._cached[block_hash]
        else:
            del entry[block.block_id]
            if not entry:
                del self._cached[block_hash]
        block.block_hash = None
        self._on_removed(block_hash)
