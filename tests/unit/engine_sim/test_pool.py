"""The block pool: LRU, references, duplicates, and what must hold whatever is done to it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from services.engine_sim.pool import Block, BlockPool, PoolExhausted


def full(pool: BlockPool, *hashes: int) -> list[Block]:
    blocks = pool.allocate(len(hashes))
    for block, block_hash in zip(blocks, hashes, strict=True):
        pool.cache(block, block_hash)
    return blocks


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(4)
    assert [block.block_id for block in pool.allocate(3)] == [1, 2, 3]
    with pytest.raises(PoolExhausted, match="1 blocks were asked for, 0 of 3 are free"):
        pool.allocate(1)


def test_a_pool_of_the_null_block_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least 2"):
        BlockPool(1)


def test_too_large_an_allocation_changes_nothing() -> None:
    pool = BlockPool(4)
    with pytest.raises(PoolExhausted):
        pool.allocate(4)
    assert pool.free_count == 3


def test_a_freed_block_can_still_be_hit_until_it_is_handed_out() -> None:
    removed: list[int | bytes] = []
    pool = BlockPool(3, removed.append)
    blocks = full(pool, 11, 12)
    pool.free(reversed(blocks))
    assert pool.longest_hit([11, 12, 13]) == blocks
    pool.allocate(1)
    assert removed == [12]
    assert [block.block_hash for block in pool.longest_hit([11, 12])] == [11]


def test_a_hit_ends_at_the_first_missing_block() -> None:
    pool = BlockPool(9)
    full(pool, 1, 2, 4)
    assert [block.block_hash for block in pool.longest_hit([1, 2, 3, 4])] == [1, 2]


def test_the_least_recently_freed_prefix_goes_first_and_its_tail_before_its_root() -> None:
    removed: list[int | bytes] = []
    pool = BlockPool(5, removed.append)
    old, new = full(pool, 1, 2), full(pool, 3, 4)
    pool.free(reversed(old))
    pool.free(reversed(new))
    pool.allocate(4)
    assert removed == [2, 1, 4, 3]


def test_touching_a_free_block_takes_it_out_of_the_queue_and_makes_it_the_last_to_go() -> None:
    removed: list[int | bytes] = []
    pool = BlockPool(4, removed.append)
    blocks = full(pool, 1, 2, 3)
    pool.free(reversed(blocks))
    pool.touch(blocks[:1])
    assert pool.free_count == 2
    pool.free(blocks[:1])
    pool.allocate(3)
    assert removed == [3, 2, 1]


def test_a_block_without_a_hash_is_reused_before_anything_cached() -> None:
    pool = BlockPool(9)
    cached, partial = full(pool, 1), pool.allocate(2)
    pool.free([*reversed(partial), *cached])
    assert pool.free_order()[:2] == [partial[1].block_id, partial[0].block_id]
    assert pool.free_order()[-1] == cached[0].block_id


def test_two_copies_of_a_hash_are_removed_one_by_one_and_hit_as_long_as_one_is_left() -> None:
    removed: list[int | bytes] = []
    pool = BlockPool(4, removed.append)
    first, second = full(pool, 7), full(pool, 7)
    assert pool.longest_hit([7]) == first
    pool.free(first)
    pool.free(second)
    pool.allocate(2)
    assert removed == [7]
    assert pool.longest_hit([7]) == second
    pool.allocate(1)
    assert removed == [7, 7]
    assert pool.longest_hit([7]) == []


def test_a_block_is_held_as_often_as_it_was_taken() -> None:
    pool = BlockPool(3)
    (block,) = full(pool, 1)
    pool.touch([block])
    pool.free([block])
    assert pool.free_count == 1
    pool.free([block])
    assert pool.free_count == 2
    with pytest.raises(ValueError, match="freed more often"):
        pool.free([block])


def test_only_a_held_block_without_a_hash_can_become_full() -> None:
    pool = BlockPool(3)
    (block,) = full(pool, 1)
    with pytest.raises(ValueError, match="already has a hash"):
        pool.cache(block, 2)
    pool.free([block])
    with pytest.raises(ValueError, match="is free"):
        pool.cache(block, 2)


def test_a_reset_needs_every_block_free_and_forgets_every_hash() -> None:
    pool = BlockPool(4)
    blocks = full(pool, 1, 2)
    assert pool.reset() is False
    assert pool.usage == pytest.approx(2 / 3)
    pool.free(blocks)
    assert pool.reset() is True
    assert pool.cached_hashes == frozenset()
    assert pool.longest_hit([1]) == []


class AnyUse(RuleBasedStateMachine):
    """Requests come, hit, fill blocks and go, in any order; the pool is compared with a plain count of references."""

    held = Bundle("held")

    @initialize(num_blocks=st.integers(2, 12))
    def start(self, num_blocks: int) -> None:
        self.removed: list[int | bytes] = []
        self.pool = BlockPool(num_blocks, self.removed.append)
        self.references: Counter[int] = Counter()
        self.copies: Counter[int | bytes] = Counter()

    @rule(target=held, prefix=st.integers(0, 3), length=st.integers(1, 4), new=st.integers(0, 4))
    def admit(self, prefix: int, length: int, new: int) -> list[Block]:
        hashes = [prefix * 100 + position for position in range(length)]
        hit = self.pool.longest_hit(hashes)
        idle = sum(block.references == 0 for block in hit)
        if new + idle > self.pool.free_count:
            return []
        self.pool.touch(hit)
        before = len(self.removed)
        blocks = hit + self.pool.allocate(new)
        self.copies.subtract(self.removed[before:])
        for block, block_hash in list(zip(blocks, hashes, strict=False))[len(hit) :]:
            self.pool.cache(block, block_hash)
            self.copies[block_hash] += 1
        self.references.update(block.block_id for block in blocks)
        return blocks

    @rule(blocks=consumes(held))
    def finish(self, blocks: list[Block]) -> None:
        self.pool.free(reversed(blocks))
        self.references.subtract(block.block_id for block in blocks)

    @precondition(lambda self: not +self.references)
    @rule()
    def reset(self) -> None:
        assert self.pool.reset()
        self.copies.clear()

    @invariant()
    def every_reference_is_counted(self) -> None:
        assert all(block.references == self.references[block.block_id] for block in self.pool.blocks)
        assert all(block.references >= 0 for block in self.pool.blocks)

    @invariant()
    def no_block_is_lost(self) -> None:
        free = self.pool.free_order()
        used = [block.block_id for block in self.pool.blocks[1:] if block.references]
        assert sorted(free + used) == list(range(1, self.pool.num_blocks))

    @invariant()
    def what_is_cached_is_what_was_stored_and_not_removed(self) -> None:
        assert self.pool.cached_hashes == {block_hash for block_hash, count in self.copies.items() if count}
        assert Counter(block.block_hash for block in self.pool.blocks if block.block_hash is not None) == +self.copies


TestAnyUse = AnyUse.TestCase
TestAnyUse.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), max_size=30), st.integers(6, 14))
def test_evicting_in_order_keeps_the_cached_set_closed_under_prefixes(
    turns: list[tuple[int, int]], num_blocks: int
) -> None:
    """Requests that run one after another never leave a block cached whose prefix is not."""
    pool = BlockPool(num_blocks)
    for prefix, length in turns:
        hashes = [prefix * 100 + position for position in range(length)]
        hit = pool.longest_hit(hashes)
        pool.touch(hit)
        new = pool.allocate(length - len(hit))
        for block, block_hash in zip(new, hashes[len(hit) :], strict=True):
            pool.cache(block, block_hash)
        pool.free(reversed(hit + new))
        cached = pool.cached_hashes
        assert all(
            block_hash % 100 == 0 or block_hash - 1 in cached for block_hash in cached if isinstance(block_hash, int)
        )
