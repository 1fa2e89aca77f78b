"""Pages put together to blocks: a block is there while all its pages are; no hash may name two prefixes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kv.address import addresses
from services.kv.tier import Tier
from services.worker.engines.events import Batch, Cause, Cleared, EngineHash, Event, Keys, Removed, Stored
from services.worker.engines.pages import PageGrouper
from services.worker.translate import GroupingTranslator

SIZE = 4


def plainly(tokens: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
    return list(tokens), ()


def name(prefix: Sequence[int]) -> int:
    """The engine's hash of a prefix."""
    return hash(tuple(prefix))


def stored(tokens: Sequence[int], *, start: int = 0, page: int = 1, tier: Tier = Tier.DEVICE) -> Stored:
    """The pages of ``tokens`` from token ``start`` on."""
    ends = range(start + page, len(tokens) + 1, page)
    return Stored(
        [name(tokens[:end]) for end in ends], name(tokens[:start]) if start else None, list(tokens[start:]), page, tier
    )


def removed(*prefixes: Sequence[int], tier: Tier = Tier.DEVICE) -> Removed:
    return Removed([name(prefix) for prefix in prefixes], tier)


def translator(page: int = 1) -> GroupingTranslator:
    return GroupingTranslator(PageGrouper(page, SIZE, plainly))


def fed(*events: Event, page: int = 1) -> GroupingTranslator:
    made = translator(page)
    made.apply(Batch(0.0, list(events)))
    return made


def held(found: GroupingTranslator, tier: Tier = Tier.DEVICE) -> set[int]:
    return set(found.resident.published(tier))


LONG = list(range(1, 13))
CHAIN = addresses(LONG, SIZE)


def test_pages_of_one_token_make_blocks_and_the_rest_waits() -> None:
    assert held(fed(stored(LONG[:10]))) == set(CHAIN[:2])
    assert held(fed(stored(LONG[:10]), stored(LONG, start=10))) == set(CHAIN)


def test_larger_pages_and_pages_as_large_as_blocks() -> None:
    assert held(fed(stored(LONG, page=2), page=2)) == set(CHAIN)
    assert held(fed(stored(LONG, page=4), page=4)) == set(CHAIN)


def test_a_block_goes_with_any_of_its_pages() -> None:
    found = fed(stored(LONG), removed(LONG[:10]))
    assert held(found) == set(CHAIN[:2])
    found.apply(Batch(0.0, [removed(LONG[:1])]))
    assert held(found) == set()


def test_what_comes_again_is_there_again() -> None:
    found = fed(stored(LONG), removed(LONG), removed(LONG[:11]), stored(LONG, start=10))
    assert held(found) == set(CHAIN)


def test_branches_within_a_block_share_its_first_pages() -> None:
    other = [*LONG[:2], 99, 98]
    found = fed(stored(LONG[:4]), stored(other, start=2))
    assert held(found) == {CHAIN[0], addresses(other, SIZE)[0]}
    found.apply(Batch(0.0, [removed(other)]))
    assert held(found) == {CHAIN[0]}
    found.apply(Batch(0.0, [removed(LONG[:2])]))
    assert held(found) == set()


def test_a_hash_that_names_two_prefixes_names_none() -> None:
    """Engines that hash a page's own tokens: one hash for the same page after two prefixes."""
    pages = [Stored([7], None, [1, 2, 3, 4], SIZE), Stored([8], 7, [5, 6, 7, 8], SIZE)]
    found = fed(*pages, page=SIZE)
    assert len(held(found)) == 2
    found.apply(Batch(0.0, [Stored([9], None, [9, 9, 9, 9], SIZE), Stored([8], 9, [5, 6, 7, 8], SIZE)]))
    assert held(found) == {*addresses([1, 2, 3, 4], SIZE), *addresses([9, 9, 9, 9], SIZE)}
    assert found.unaddressed[Cause.AMBIGUOUS_KEYS] == 1
    found.apply(Batch(0.0, [Stored([8], 7, [5, 6, 7, 8], SIZE)]))
    assert len(held(found)) == 2


def test_unknown_parents_and_misfits_are_counted() -> None:
    found = fed(stored(LONG, start=4), Stored([1, 2], None, [1, 2, 3], 1), Stored([3], None, [1, 2], 2))
    assert held(found) == set()
    assert found.unaddressed == {Cause.UNKNOWN_PARENT: 8, Cause.MISFIT: 3}


def test_a_root_that_can_not_be_told_takes_its_descendants_along() -> None:
    root = Stored([name(LONG[:4])], None, LONG[:4], SIZE, keys=Keys(addressable=0, cause=Cause.AMBIGUOUS_KEYS))
    found = fed(root, stored(LONG, start=4, page=4), page=4)
    assert held(found) == set()
    assert found.unaddressed == {Cause.AMBIGUOUS_KEYS: 1, Cause.UNKNOWN_PARENT: 2}


def test_tiers_are_apart() -> None:
    found = fed(stored(LONG), stored(LONG[:8], tier=Tier.HOST), removed(*(LONG[:end] for end in range(12, 0, -1))))
    assert (held(found), held(found, Tier.HOST)) == (set(), set(CHAIN[:2]))


def test_nothing_is_left_of_what_is_gone() -> None:
    found = fed(stored(LONG), removed(*(LONG[:end] for end in range(12, 0, -1))))
    assert len(found._grouper) == 0
    assert held(fed(stored(LONG), Cleared())) == set()


def test_a_page_size_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        PageGrouper(3, SIZE, plainly)


sequences = st.lists(st.integers(0, 2), min_size=1, max_size=11).map(tuple)
operations = st.lists(st.tuples(st.booleans(), sequences), max_size=25)


@given(operations)
def test_as_a_radix_tree_that_evicts_leaves_would(steps: list[tuple[bool, tuple[int, ...]]]) -> None:
    """Against the plain rule: what is published is every whole block all of whose prefixes are held."""
    cache: set[tuple[int, ...]] = set()
    found = translator()
    for insert, tokens in steps:
        events: list[Event] = []
        if insert:
            known = max(n for n in range(len(tokens) + 1) if not n or tokens[:n] in cache)
            cache.update(tokens[:end] for end in range(known + 1, len(tokens) + 1))
            events = [stored(tokens, start=known)] if known < len(tokens) else []
        elif tokens in cache and not any(len(one) > len(tokens) and one[: len(tokens)] == tokens for one in cache):
            cache.discard(tokens)
            events = [removed(tokens)]
        found.apply(Batch(0.0, events))
    whole = {addresses(prefix, SIZE)[-1] for prefix in cache if len(prefix) % SIZE == 0}
    assert held(found) == whole
    assert found.unmatched == 0
    hashes: list[EngineHash] = [name(prefix) for prefix in cache]
    assert len(found._grouper) == len(hashes)
