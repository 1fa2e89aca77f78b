"""The resident set against a naive model: closed under prefixes, counted right, told change by change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kv_event import KvOp
from services.kv.tier import TIERS, Tier
from services.worker.resident import Change, ResidentSet

PARENTS: dict[int, int | None] = {0x10: None, 0x11: 0x10, 0x12: 0x11, 0x13: 0x12, 0x21: 0x10, 0x22: 0x21, 0x30: None}
"""A forest of prefixes: two roots, a fork after the first."""

adds = st.tuples(st.just("add"), st.sampled_from(sorted(PARENTS)), st.sampled_from(TIERS))
removes = st.tuples(st.just("remove"), st.sampled_from(sorted(PARENTS)), st.sampled_from(TIERS))
clears = st.tuples(st.just("clear"), st.just(0), st.just(Tier.DEVICE))
histories = st.lists(adds | adds | adds | removes | removes | clears, max_size=60)


class Model:
    """What should be published, computed anew from the counts each time."""

    def __init__(self) -> None:
        self.counts: dict[tuple[int, Tier], int] = {}

    def resident(self, address: int) -> bool:
        return any(self.counts.get((address, tier)) for tier in TIERS)

    def closed(self, address: int | None) -> bool:
        return address is None or (self.resident(address) and self.closed(PARENTS[address]))

    def published(self, tier: Tier) -> set[int]:
        return {address for address in PARENTS if self.counts.get((address, tier)) and self.closed(address)}


class Consumer:
    """Applies the change log as a router does, one address at a time, and checks what must hold at every step."""

    def __init__(self) -> None:
        self.sets: dict[Tier, set[int]] = {tier: set() for tier in TIERS}

    def apply(self, log: list[Change]) -> None:
        for change in log:
            held = self.sets[change.tier]
            if change.op is KvOp.CLEARED:
                # A reset voids all tiers in one breath: closure holds again after the last of them.
                held.clear()
                continue
            for address in change.addresses:
                if change.op is KvOp.STORED:
                    assert address not in held
                    held.add(address)
                else:
                    held.remove(address)
                self.check_closed()

    def check_closed(self) -> None:
        union = set().union(*self.sets.values())
        for address in union:
            parent = PARENTS[address]
            assert parent is None or parent in union


@given(histories)
def test_any_history_keeps_the_set_closed_counted_and_told(history: list[tuple[str, int, Tier]]) -> None:
    resident, model, consumer = ResidentSet(), Model(), Consumer()
    for op, address, tier in history:
        if op == "add":
            resident.add(address, PARENTS[address], tier)
            model.counts[address, tier] = model.counts.get((address, tier), 0) + 1
        elif op == "remove" and model.counts.get((address, tier)):
            resident.remove(address, tier)
            model.counts[address, tier] -= 1
        elif op == "clear":
            resident.clear()
            model.counts.clear()
        for each in TIERS:
            expected = model.published(each)
            assert resident.published(each) == expected
            value = 0
            for member in expected:
                value ^= member
            assert resident.xor(each) == value
        if address % 2:
            pending, log = resident.pending, resident.drain()
            assert pending == sum(len(change.addresses) or 1 for change in log)
            consumer.apply(log)
    consumer.apply(resident.drain())
    assert consumer.sets == {tier: model.published(tier) for tier in TIERS}
    assert len(resident) == sum(model.resident(address) for address in PARENTS)


def test_a_child_waits_for_its_parent() -> None:
    resident = ResidentSet()
    resident.add(0x12, 0x11, Tier.DEVICE)
    resident.add(0x11, 0x10, Tier.HOST)
    assert resident.drain() == []
    resident.add(0x10, None, Tier.DEVICE)
    assert resident.drain() == [
        Change(KvOp.STORED, Tier.DEVICE, [0x10]),
        Change(KvOp.STORED, Tier.HOST, [0x11]),
        Change(KvOp.STORED, Tier.DEVICE, [0x12]),
    ]


def test_a_parent_that_goes_takes_its_children_out_tails_first() -> None:
    resident = ResidentSet()
    for address in (0x10, 0x11, 0x12):
        resident.add(address, PARENTS[address], Tier.DEVICE)
    resident.drain()
    resident.remove(0x10, Tier.DEVICE)
    assert resident.drain() == [Change(KvOp.REMOVED, Tier.DEVICE, [0x12, 0x11, 0x10])]
    resident.add(0x10, None, Tier.HOST)
    assert resident.published(Tier.DEVICE) == {0x11, 0x12}


def test_of_the_devices_changes_only_what_is_left_is_told() -> None:
    resident = ResidentSet()
    for address in (0x10, 0x30):
        resident.add(address, None, Tier.DEVICE)
    resident.drain()
    resident.remove(0x30, Tier.DEVICE)
    resident.add(0x11, 0x10, Tier.DEVICE)
    resident.add(0x12, 0x11, Tier.DEVICE)
    resident.remove(0x12, Tier.DEVICE)
    resident.remove(0x10, Tier.DEVICE)
    resident.add(0x10, None, Tier.DEVICE)
    assert resident.pending == 2
    assert resident.drain() == [
        Change(KvOp.STORED, Tier.DEVICE, [0x11]), Change(KvOp.REMOVED, Tier.DEVICE, [0x30]),
    ]  # fmt: skip
    assert (resident.pending, resident.drain()) == (0, [])


def test_other_tiers_and_resets_keep_their_place_in_the_order() -> None:
    resident = ResidentSet()
    resident.add(0x10, None, Tier.DEVICE)
    resident.add(0x10, None, Tier.HOST)
    resident.remove(0x10, Tier.DEVICE)
    resident.clear()
    resident.add(0x30, None, Tier.DEVICE)
    assert resident.drain() == [
        Change(KvOp.STORED, Tier.DEVICE, [0x10]), Change(KvOp.STORED, Tier.HOST, [0x10]),
        Change(KvOp.REMOVED, Tier.DEVICE, [0x10]), Change(KvOp.CLEARED, Tier.HOST, []),
        Change(KvOp.STORED, Tier.DEVICE, [0x30]),
    ]  # fmt: skip


def test_clearing_an_empty_set_says_nothing() -> None:
    resident = ResidentSet()
    resident.clear()
    assert resident.drain() == []


def test_removing_what_is_not_held_is_an_error() -> None:
    resident = ResidentSet()
    resident.add(0x10, None, Tier.DEVICE)
    with pytest.raises(KeyError, match="not held in tier host"):
        resident.remove(0x10, Tier.HOST)
