"""The index answers what a naive set per slot answers, whatever was stored, removed, cleared, retired and reused."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kv.tier import TIERS, Tier
from services.router.index import PrefixIndex, Resident
from services.router.slots import NO_OVERLAP, Overlap

PROMPT = list(range(1000, 1040))


def chain(held: dict[Tier, set[int]], addresses: list[int]) -> Overlap:
    """The naive rule: as far as the device goes, from there the host, from there the disk."""
    place, lengths = 0, []
    for tier in TIERS:
        start = place
        while place < len(addresses) and addresses[place] in held[tier]:
            place += 1
        lengths.append(place - start)
    return Overlap(*lengths)


def drain(steps) -> None:
    for _ in steps:
        pass


def test_a_slot_holds_the_leading_blocks_it_stored() -> None:
    index = PrefixIndex()
    slot = index.join()
    index.store(slot, Tier.DEVICE, PROMPT[:7])
    assert index.match(PROMPT) == {slot.number: Overlap(7)}


def test_nothing_is_held_of_an_unknown_or_empty_prompt() -> None:
    index = PrefixIndex()
    index.store(index.join(), Tier.DEVICE, PROMPT)
    assert index.match([1, 2, 3]) == {}
    assert index.match([]) == {}


@pytest.mark.parametrize("length", range(1, len(PROMPT) + 1))
def test_galloping_finds_every_length(length: int) -> None:
    index = PrefixIndex()
    slot = index.join()
    index.store(slot, Tier.DEVICE, PROMPT[:length])
    assert index.match(PROMPT)[slot.number].blocks == length
    assert index.match(PROMPT[:length])[slot.number].blocks == length


def test_tiers_continue_each_other_at_the_seam() -> None:
    index = PrefixIndex()
    slot = index.join()
    index.store(slot, Tier.DEVICE, PROMPT[:4])
    index.store(slot, Tier.HOST, PROMPT[2:9])
    index.store(slot, Tier.DISK, PROMPT[:12])
    assert index.match(PROMPT) == {slot.number: Overlap(4, 5, 3)}


def test_the_chain_never_goes_back_to_a_nearer_tier() -> None:
    index = PrefixIndex()
    slot = index.join()
    index.store(slot, Tier.DEVICE, PROMPT[:2] + PROMPT[4:8])
    index.store(slot, Tier.HOST, PROMPT[2:4])
    assert index.match(PROMPT) == {slot.number: Overlap(2, 2, 0)}


def test_storing_twice_counts_once() -> None:
    index = PrefixIndex()
    slot = index.join()
    index.store(slot, Tier.DEVICE, PROMPT)
    before = slot.proof(Tier.DEVICE)
    index.store(slot, Tier.DEVICE, PROMPT[:5])
    assert slot.proof(Tier.DEVICE) == before
    index.remove(slot, Tier.DEVICE, PROMPT)
    index.remove(slot, Tier.DEVICE, PROMPT)
    assert slot.proof(Tier.DEVICE) == (0, 0)
    assert len(index) == 0


def test_a_retired_slot_is_masked_at_once_and_its_bit_waits_for_the_sweep() -> None:
    index = PrefixIndex()
    gone, stays = index.join(), index.join()
    index.store(gone, Tier.DEVICE, PROMPT)
    index.store(stays, Tier.DEVICE, PROMPT[:3])
    index.leave(gone)
    assert index.match(PROMPT) == {stays.number: Overlap(3)}
    index.sweep(limit=10)
    assert index.join().number not in (gone.number, stays.number)
    while index.sweep(limit=10):
        pass
    assert len(index) == 3
    reused = index.join()
    assert reused.number == gone.number
    assert index.match(PROMPT) == {stays.number: Overlap(3)}


def test_a_slice_of_a_sweep_is_bounded() -> None:
    index = PrefixIndex()
    slot = index.join()
    index.store(slot, Tier.DEVICE, PROMPT)
    index.leave(slot)
    assert index.to_sweep == len(PROMPT)
    assert index.sweep(limit=15)
    assert index.to_sweep == len(PROMPT) - 15


def test_an_invisible_slot_is_filled_first_and_then_shown() -> None:
    index = PrefixIndex()
    slot = index.join(visible=False)
    index.store(slot, Tier.DEVICE, PROMPT)
    assert index.match(PROMPT) == {}
    index.show(slot)
    assert index.match(PROMPT) == {slot.number: Overlap(len(PROMPT))}


def test_clearing_a_tier_leaves_the_others() -> None:
    index = PrefixIndex()
    slot = index.join()
    index.store(slot, Tier.DEVICE, PROMPT)
    index.store(slot, Tier.HOST, PROMPT[:6])
    drain(index.clear(slot, Tier.DEVICE))
    assert index.match(PROMPT) == {slot.number: Overlap(0, 6, 0)}
    assert slot.proof(Tier.DEVICE) == (0, 0)
    drain(index.clear(slot, Tier.HOST))
    assert index.match(PROMPT) == {}


def test_the_journal_stays_in_proportion_to_what_is_held() -> None:
    index = PrefixIndex()
    slot = index.join()
    index.store(slot, Tier.DEVICE, PROMPT)
    for start in range(10_000, 400_000, 1000):
        turnover = list(range(start, start + 1000))
        index.store(slot, Tier.DEVICE, turnover)
        index.remove(slot, Tier.DEVICE, turnover)
    assert len(slot.journal[0]) < 100_000
    assert index.addresses(slot, Tier.DEVICE) == set(PROMPT)


def test_many_slots_of_many_lengths_are_told_apart() -> None:
    index, wanted = PrefixIndex(), {}
    rng = random.Random(5)
    for _ in range(300):
        slot = index.join()
        length = rng.randrange(0, len(PROMPT) + 1)
        index.store(slot, Tier.DEVICE, PROMPT[:length])
        if length:
            wanted[slot.number] = Overlap(length)
    assert index.match(PROMPT) == wanted


class Naive:
    """A set of addresses per slot and tier, and the prompts they come from."""

    def __init__(self) -> None:
        self.held: dict[int, dict[Tier, set[int]]] = defaultdict(lambda: {tier: set() for tier in TIERS})

    def closed(self, number: int, prompts: list[list[int]]) -> bool:
        union = set().union(*self.held[number].values())
        return all(
            prompt[place - 1] in union
            for prompt in prompts
            for place in range(1, len(prompt))
            if prompt[place] in union
        )


PROMPTS = [
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    [1, 2, 3, 14, 15, 16, 17],
    [1, 2, 3, 14, 25, 26],
    [31, 32, 33, 34, 35],
]
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "store", "remove", "clear", "replace", "sweep"]),
        st.integers(0, 3),
        st.sampled_from(TIERS),
        st.integers(0, len(PROMPTS) - 1),
        st.integers(1, 10),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(OPERATIONS)
def test_matches_equal_the_naive_sets_after_any_operations(operations) -> None:
    index, naive = PrefixIndex(), Naive()
    slots: list[Resident] = [index.join() for _ in range(4)]
    for op, which, tier, prompt_number, count in operations:
        slot, prompt = slots[which], PROMPTS[prompt_number]
        if op == "store":
            index.store(slot, tier, prompt[:count])
            naive.held[slot.number][tier].update(prompt[:count])
        elif op == "remove":
            # Tail first, as engines evict: the set stays closed.
            tail = [a for a in reversed(prompt[count - 1 :]) if a in naive.held[slot.number][tier]]
            before = {t: set(addresses) for t, addresses in naive.held[slot.number].items()}
            naive.held[slot.number][tier].difference_update(tail)
            if naive.closed(slot.number, PROMPTS):
                index.remove(slot, tier, tail)
            else:
                naive.held[slot.number] = before
        elif op == "clear":
            before = set(naive.held[slot.number][tier])
            naive.held[slot.number][tier] = set()
            if naive.closed(slot.number, PROMPTS):
                drain(index.clear(slot, tier))
            else:
                naive.held[slot.number][tier] = before
        elif op == "replace":
            index.leave(slot)
            slots[which] = index.join()
            naive.held.pop(slots[which].number, None)
        else:
            index.sweep(limit=count)
    for slot in slots:
        held = naive.held[slot.number]
        for tier in TIERS:
            assert index.addresses(slot, tier) == held[tier]
            xor = 0
            for address in held[tier]:
                xor ^= address
            assert slot.proof(tier) == (len(held[tier]), xor)
    for prompt in PROMPTS:
        found = index.match(prompt)
        for slot in slots:
            assert found.get(slot.number, NO_OVERLAP) == chain(naive.held[slot.number], prompt)
        assert set(found) <= {slot.number for slot in slots}
