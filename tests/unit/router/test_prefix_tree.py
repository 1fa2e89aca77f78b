"""Prompts in flight: blocks shared by several count once, prefixes are found per slot, nothing stays behind."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.prefix_tree import PrefixTree


def test_shared_blocks_count_once_a_slot() -> None:
    tree: PrefixTree[str] = PrefixTree()
    tree.add("a", [1, 2, 3, 4])
    tree.add("a", [1, 2, 13, 14])
    tree.add("b", [1, 2])
    assert tree.blocks("a") == 6
    assert tree.blocks("b") == 2


def test_matching_says_how_far_each_slot_goes() -> None:
    tree: PrefixTree[str] = PrefixTree()
    tree.add("a", [1, 2, 3, 4])
    tree.add("b", [1, 2, 13])
    assert tree.match([1, 2, 3, 4, 5]) == {"a": 4, "b": 2}
    assert tree.match([1, 2, 13]) == {"a": 2, "b": 3}
    assert tree.match([9]) == {}
    assert tree.match([]) == {}


def test_taking_out_what_was_not_there_is_an_error() -> None:
    tree: PrefixTree[str] = PrefixTree()
    tree.add("a", [1])
    with pytest.raises(KeyError):
        tree.remove("b", [1])


def test_an_empty_prompt_leaves_no_trace() -> None:
    tree: PrefixTree[str] = PrefixTree()
    tree.add("a", [])
    assert not tree
    tree.remove("a", [])


def paths() -> st.SearchStrategy[list[int]]:
    """Addresses of prompts over a small alphabet: an address names its whole prefix."""

    def addresses(letters: list[int]) -> list[int]:
        result, number = [], 1
        for letter in letters:
            number = number * 3 + letter
            result.append(number)
        return result

    return st.lists(st.integers(0, 1), max_size=9).map(addresses)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), paths(), st.booleans()), max_size=40), paths())
def test_the_tree_equals_counters_of_addresses(steps, probe) -> None:
    tree: PrefixTree[str] = PrefixTree()
    inside: list[tuple[str, list[int]]] = []
    counts: Counter[tuple[str, int]] = Counter()
    for slot, prompt, out in steps:
        if out and inside:
            slot, prompt = inside.pop(len(prompt) % len(inside))
            tree.remove(slot, prompt)
            counts.subtract((slot, address) for address in prompt)
        else:
            tree.add(slot, prompt)
            inside.append((slot, prompt))
            counts.update((slot, address) for address in prompt)
    for slot in "abc":
        assert tree.blocks(slot) == sum(1 for (owner, _), n in counts.items() if owner == slot and n > 0)
        held = 0
        while held < len(probe) and counts[slot, probe[held]] > 0:
            held += 1
        assert tree.match(probe).get(slot, 0) == held
    for slot, prompt in inside:
        tree.remove(slot, prompt)
    assert not tree
    assert all(tree.blocks(slot) == 0 for slot in "abc")
