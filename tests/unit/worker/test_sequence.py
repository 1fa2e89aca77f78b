"""The record stream of a slot: numbered without holes, proven by count and xor, within the size limits."""

from __future__ import annotations

from functools import reduce
from operator import xor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.kv_event import KvEvents, KvOp, Resident
from services.kv.tier import TIERS, Tier
from services.runtime.topics import RECORD_LIMIT_BYTES
from services.worker import sequence
from services.worker.resident import Change
from services.worker.sequence import Sequencer, SlotName

SLOT = SlotName("w1", 0, 1_000, "m", 16)
D, H = Tier.DEVICE, Tier.HOST


def begun(**held: list[int]) -> Sequencer:
    sequencer = Sequencer(SLOT)
    list(sequencer.snapshot({Tier(name): addresses for name, addresses in held.items()}, unknown=0, complete=True))
    return sequencer


def test_the_first_record_is_a_snapshot_even_of_nothing() -> None:
    (record,) = Sequencer(SLOT).snapshot({}, unknown=3, complete=False)
    assert record.seq == 0
    assert record.snapshot is not None
    assert (record.snapshot.part, record.snapshot.parts, record.snapshot.addresses) == (0, 1, [])
    assert record.resident == {tier: Resident(count=0, xor=0) for tier in TIERS}
    assert (record.unknown, record.complete, record.epoch, record.block_size) == (3, False, 1_000, 16)
    with pytest.raises(ValueError, match="seq 0 must be a snapshot"):
        Sequencer(SLOT).changes([Change(KvOp.STORED, D, [1])], unknown=0, complete=True)


def test_changes_follow_with_what_is_resident_after_them() -> None:
    (record,) = begun().changes(
        [Change(KvOp.STORED, D, [1, 2, 4]), Change(KvOp.STORED, H, [8]), Change(KvOp.REMOVED, D, [2])],
        unknown=0, complete=True,
    )  # fmt: skip
    assert record.seq == 1
    assert [(change.op, change.tier, change.addresses) for change in record.changes] == [
        (KvOp.STORED, D, [1, 2, 4]), (KvOp.STORED, H, [8]), (KvOp.REMOVED, D, [2]),
    ]  # fmt: skip
    assert record.resident is not None
    assert record.resident[D] == Resident(count=2, xor=5)
    assert record.resident[H] == Resident(count=1, xor=8)


def test_a_cleared_tier_counts_from_nothing() -> None:
    (record,) = begun(device=[1, 2], host=[3]).changes(
        [Change(KvOp.CLEARED, D, []), Change(KvOp.STORED, D, [9])], unknown=0, complete=True
    )
    assert record.resident is not None
    assert record.resident[D] == Resident(count=1, xor=9)
    assert record.resident[H] == Resident(count=1, xor=3)


def test_no_record_has_more_than_its_share_of_addresses() -> None:
    log = [Change(KvOp.STORED, D, list(range(5_000))), Change(KvOp.STORED, H, list(range(4_000)))]
    records = begun().changes(log, unknown=0, complete=True)
    assert [sum(len(change.addresses) for change in record.changes) for record in records] == [4_096, 4_096, 808]
    assert [record.seq for record in records] == [1, 2, 3]


def test_a_large_snapshot_has_parts_of_one_tier_each_within_the_record_limit() -> None:
    top = 2**64 - 1
    size = sequence.MAX_SNAPSHOT_ADDRESSES
    held = {D: [top - n for n in range(size + 1)], H: [1]}
    records = list(Sequencer(SLOT).snapshot(held, unknown=0, complete=True))
    parts = [record.snapshot for record in records if record.snapshot is not None]
    assert [(part.id, part.part, part.parts, part.tier, len(part.addresses)) for part in parts] == [
        (0, 0, 3, D, size), (0, 1, 3, D, 1), (0, 2, 3, H, 1),
    ]  # fmt: skip
    assert [record.resident is None for record in records] == [True, True, False]
    assert size <= 60_000
    assert len(records[0].to_bytes()) < RECORD_LIMIT_BYTES


changes = st.builds(
    Change,
    st.sampled_from([KvOp.STORED, KvOp.REMOVED]),
    st.sampled_from(TIERS),
    st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True),
) | st.builds(Change, st.just(KvOp.CLEARED), st.sampled_from(TIERS), st.just([]))


@settings(max_examples=50)
@given(st.lists(changes, max_size=20))
def test_any_log_arrives_whole_and_in_order_and_ends_with_the_true_sums(history: list[Change]) -> None:
    log, held = possible(history)
    limit, sequence.MAX_CHANGE_ADDRESSES = sequence.MAX_CHANGE_ADDRESSES, 7
    try:
        records = begun().changes(log, unknown=0, complete=True)
    finally:
        sequence.MAX_CHANGE_ADDRESSES = limit

    told = [Change(change.op, change.tier, change.addresses) for record in records for change in record.changes]
    assert spelled(told) == spelled(log)
    assert all(sum(len(change.addresses) or 1 for change in record.changes) <= 7 for record in records)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    if records:
        assert records[-1].resident == {
            tier: Resident(count=len(held[tier]), xor=reduce(xor, held[tier], 0)) for tier in TIERS
        }
    assert all(KvEvents.from_bytes(record.to_bytes()) == record for record in records)


def possible(history: list[Change]) -> tuple[list[Change], dict[Tier, set[int]]]:
    """Only what can happen to sets: nothing stored twice, nothing removed that is not there."""
    held: dict[Tier, set[int]] = {tier: set() for tier in TIERS}
    log = []
    for change in history:
        members = held[change.tier]
        moved = [address for address in change.addresses if (address in members) != (change.op is KvOp.STORED)]
        if change.op is KvOp.CLEARED:
            members.clear()
        else:
            members.symmetric_difference_update(moved)
        if moved or change.op is KvOp.CLEARED:
            log.append(Change(change.op, change.tier, moved))
    return log, held


def spelled(log: list[Change]) -> list[tuple[KvOp, Tier, int | None]]:
    return [(change.op, change.tier, address) for change in log for address in (change.addresses or [None])]
