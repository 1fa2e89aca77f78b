"""Streams of KV events as consumers must hold them: epochs, seqs, snapshots, proofs, doubt and its cure."""

from __future__ import annotations

import random
from functools import reduce
from operator import xor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.kv_event import KvChange, KvEvents, KvOp, KvSnapshot, Resident
from services.kv.tier import TIERS, Tier
from services.router.kv_projection import Held, KvProjection
from services.router.slot_stream import SNAPSHOT_PATIENCE_SECONDS, Anomaly
from services.router.slots import Overlap, Slot, SlotEpoch

SLOT = Slot("w1", 0)
PROMPT = list(range(1, 21))


class Engine:
    """The true set of one slot, and the records its agent would send."""

    def __init__(self, worker_id: str = "w1", epoch: int = 1, model: str = "m", block_size: int = 16) -> None:
        self.held: dict[Tier, set[int]] = {tier: set() for tier in TIERS}
        self.worker_id, self.epoch, self.model, self.block_size = worker_id, epoch, model, block_size
        self.seq = 0

    @property
    def life(self) -> SlotEpoch:
        return SlotEpoch(self.worker_id, 0, self.epoch)

    def change(self, op: KvOp, addresses: list[int] = (), tier: Tier = Tier.DEVICE) -> KvEvents:
        if op is KvOp.STORED:
            self.held[tier].update(addresses)
        elif op is KvOp.REMOVED:
            self.held[tier].difference_update(addresses)
        else:
            self.held[tier].clear()
        return self._record(changes=[KvChange(op=op, tier=tier, addresses=list(addresses))], resident=self.proof())

    def store(self, *addresses: int, tier: Tier = Tier.DEVICE) -> KvEvents:
        return self.change(KvOp.STORED, list(addresses), tier)

    def remove(self, *addresses: int, tier: Tier = Tier.DEVICE) -> KvEvents:
        return self.change(KvOp.REMOVED, list(addresses), tier)

    def snapshot(self, size: int = 1000) -> list[KvEvents]:
        pieces = [
            (tier, sorted(held)[at : at + size]) for tier, held in self.held.items() for at in range(0, len(held), size)
        ] or [(Tier.DEVICE, [])]
        last = len(pieces) - 1
        return [
            self._record(
                snapshot=KvSnapshot(id=7 + self.seq - part, part=part, parts=len(pieces), tier=tier, addresses=piece),
                resident=self.proof() if part == last else None,
            )
            for part, (tier, piece) in enumerate(pieces)
        ]

    def proof(self) -> dict[Tier, Resident]:
        return {tier: Resident(count=len(held), xor=reduce(xor, held, 0)) for tier, held in self.held.items()}

    def _record(self, **fields) -> KvEvents:
        self.seq += 1
        return KvEvents(
            worker_id=self.worker_id, epoch=self.epoch, seq=self.seq - 1, model=self.model,
            block_size=self.block_size, **fields,
        )  # fmt: skip


@pytest.fixture
def projection() -> KvProjection:
    return KvProjection(random=lambda: 0.5)


def feed(projection: KvProjection, *records: KvEvents, now: float = 0.0) -> None:
    for record in records:
        projection.take(0, projection.positions.get(0, 0), record, now)
        while projection.work():
            pass


def overlap(projection: KvProjection, engine: Engine, prompt: list[int] = PROMPT) -> Overlap:
    return projection.match(engine.model, engine.block_size, prompt).of(engine.life.slot, engine.epoch)[0]


def test_an_engine_with_several_cache_groups_gives_upper_bounds(projection: KvProjection) -> None:
    engine = Engine()
    feed(projection, *engine.snapshot(), engine.store(1, 2).model_copy(update={"hybrid": True}))
    assert projection.match("m", 16, [1, 2]).of(SLOT, engine.epoch) == Held(Overlap(2), upper_bound=True)


def uncertain(projection: KvProjection) -> bool:
    return projection.streams[SLOT].uncertain


def equal(projection: KvProjection, engine: Engine) -> bool:
    stream = projection.streams[Slot(engine.worker_id, 0)]
    return all(stream.index.addresses(stream.resident, tier) == engine.held[tier] for tier in TIERS)


def test_changes_after_the_first_snapshot_are_the_slots_set(projection: KvProjection) -> None:
    engine = Engine()
    feed(projection, *engine.snapshot(), engine.store(*PROMPT[:8]), engine.remove(8, 7))
    feed(projection, engine.store(1, tier=Tier.HOST))
    assert equal(projection, engine)
    assert overlap(projection, engine) == Overlap(6)
    assert not uncertain(projection)
    assert not projection.anomalies


def test_a_seq_that_was_seen_is_ignored_and_counted(projection: KvProjection) -> None:
    engine = Engine()
    stored, removed = [*engine.snapshot(), engine.store(1, 2)], engine.remove(2)
    feed(projection, *stored, removed, stored[1])
    assert equal(projection, engine)
    assert projection.anomalies == {Anomaly.SEEN_SEQ: 1}


def test_a_gap_makes_the_slot_uncertain_but_it_stays_in_use(projection: KvProjection) -> None:
    engine = Engine()
    feed(projection, *engine.snapshot(), engine.store(1, 2))
    engine.store(3)
    feed(projection, engine.store(4, 5))
    assert uncertain(projection)
    assert projection.anomalies == {Anomaly.GAP: 1}
    assert projection.match("m", 16, [1, 2]).of(SLOT, engine.epoch) == Held(Overlap(2), uncertain=True)


def test_a_proof_that_does_not_match_makes_the_slot_uncertain(projection: KvProjection) -> None:
    engine = Engine()
    feed(projection, *engine.snapshot())
    engine.held[Tier.DEVICE].add(99)
    feed(projection, engine.store(1))
    assert uncertain(projection)
    assert projection.anomalies == {Anomaly.RESIDENT_MISMATCH: 1}


def test_a_snapshot_cures_doubt(projection: KvProjection) -> None:
    engine = Engine()
    feed(projection, *engine.snapshot(), engine.store(1, 2))
    engine.store(3)
    feed(projection, engine.store(4), *engine.snapshot(size=2))
    assert not uncertain(projection)
    assert equal(projection, engine)
    assert projection.snapshot_requests(now=1e9) == []


def test_a_snapshot_is_asked_for_after_a_random_delay_and_again_when_none_comes(projection: KvProjection) -> None:
    engine = Engine()
    feed(projection, *engine.snapshot())
    engine.store(1)
    feed(projection, engine.store(2), now=100.0)
    assert projection.snapshot_requests(now=100.9) == []
    assert projection.snapshot_requests(now=101.0) == [engine.life]
    assert projection.snapshot_requests(now=102.0) == []
    assert projection.snapshot_requests(now=102.0 + SNAPSHOT_PATIENCE_SECONDS) == [engine.life]


def test_parts_are_staged_and_swapped_at_the_last(projection: KvProjection) -> None:
    engine = Engine()
    feed(projection, *engine.snapshot(), engine.store(1, 2, 3))
    engine.store(4)
    parts = engine.snapshot(size=2)
    feed(projection, *parts[:-1])
    assert overlap(projection, engine) == Overlap(3)
    feed(projection, parts[-1])
    assert overlap(projection, engine) == Overlap(4)


def test_a_snapshot_that_proves_what_is_known_replaces_nothing(projection: KvProjection) -> None:
    engine = Engine()
    feed(projection, *engine.snapshot(), engine.store(1, 2, 3))
    before = projection.streams[SLOT].resident
    feed(projection, *engine.snapshot(size=1))
    assert projection.streams[SLOT].resident is before


def test_a_part_that_is_missing_breaks_the_snapshot(projection: KvProjection) -> None:
    engine = Engine()
    feed(projection, *engine.snapshot(), engine.store(1, 2, 3))
    parts = engine.snapshot(size=1)
    feed(projection, parts[0], parts[2])
    assert uncertain(projection)
    assert overlap(projection, engine) == Overlap(3)


def test_a_change_between_parts_breaks_the_snapshot(projection: KvProjection) -> None:
    engine = Engine()
    feed(projection, *engine.snapshot(), engine.store(1, 2, 3))
    first = engine.snapshot(size=2)[0]
    feed(projection, first, engine.store(4).model_copy(update={"seq": first.seq + 1}))
    assert uncertain(projection)
    assert projection.anomalies[Anomaly.BROKEN_SNAPSHOT] == 1


def test_reading_may_begin_at_any_snapshot(projection: KvProjection) -> None:
    engine = Engine()
    engine.snapshot()
    engine.store(1, 2, 3)
    feed(projection, *engine.snapshot(size=2), engine.store(4))
    assert equal(projection, engine)
    assert not uncertain(projection)
    assert not projection.anomalies


def test_reading_that_begins_elsewhere_is_uncertain(projection: KvProjection) -> None:
    engine = Engine()
    engine.snapshot()
    feed(projection, engine.store(1))
    assert uncertain(projection)


def test_a_higher_epoch_replaces_the_slot(projection: KvProjection) -> None:
    old, new = Engine(epoch=1), Engine(epoch=2)
    feed(projection, *old.snapshot(), old.store(1, 2), *new.snapshot(), new.store(1))
    assert overlap(projection, new) == Overlap(1)
    assert overlap(projection, old) == Overlap()
    feed(projection, old.store(3))
    assert projection.anomalies == {Anomaly.OLD_EPOCH: 1}
    assert equal(projection, new)


def test_a_retired_slot_is_forgotten_and_stays_away(projection: KvProjection) -> None:
    engine = Engine(epoch=5)
    feed(projection, *engine.snapshot(), engine.store(1, 2))
    projection.retire(SLOT, 5)
    assert overlap(projection, engine) == Overlap()
    feed(projection, engine.store(3))
    assert SLOT not in projection.streams
    successor = Engine(epoch=6)
    feed(projection, *successor.snapshot(), successor.store(1))
    assert overlap(projection, successor) == Overlap(1)


def test_models_and_block_sizes_have_their_own_indexes(projection: KvProjection) -> None:
    one, other = Engine("w1"), Engine("w2", model="n", block_size=32)
    feed(projection, *one.snapshot(), one.store(1), *other.snapshot(), other.store(1, 2))
    assert overlap(projection, one) == Overlap(1)
    assert overlap(projection, other) == Overlap(2)
    assert projection.match("m", 32, PROMPT).of(SLOT, one.epoch) == Held()


def test_positions_move_when_a_record_is_applied_not_when_it_is_queued(projection: KvProjection) -> None:
    engine = Engine()
    for number, record in enumerate([*engine.snapshot(), engine.store(*range(1, 30_000))]):
        projection.take(3, 40 + number, record, 0.0)
    assert projection.positions == {}
    assert projection.work()
    assert projection.positions == {3: 41}
    assert projection.behind == 1
    while projection.work():
        pass
    assert projection.positions == {3: 42}
    assert equal(projection, engine)


def test_a_slot_retired_in_the_middle_of_a_record_takes_nothing_more(projection: KvProjection) -> None:
    engine, bystander = Engine(), Engine("w2")
    engine.held[Tier.DEVICE].update(range(1, 50_000))
    feed(projection, *bystander.snapshot(), bystander.store(1, 2))
    for record in engine.snapshot(size=60_000):
        projection.take(0, 1, record, 0.0)
    projection.work()
    projection.retire(SLOT, 1)
    while projection.work():
        pass
    assert equal(projection, bystander)
    index = projection.streams[Slot("w2", 0)].index
    assert len(index) == 2
    assert not index.to_sweep


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "remove", "clear", "snapshot", "lose", "repeat", "restart"]),
        st.sampled_from(TIERS),
        st.lists(st.integers(1, 30), min_size=1, max_size=6),
    ),
    max_size=50,
)


@settings(max_examples=60, deadline=None)
@given(MOVES, st.integers(0, 2**32))
def test_any_stream_ends_equal_to_the_truth_or_uncertain_and_a_snapshot_makes_it_equal(moves, seed) -> None:
    rng = random.Random(seed)
    projection = KvProjection(random=rng.random)
    engine = Engine()
    sent = engine.snapshot()
    feed(projection, *sent)
    lost = False
    for move, tier, addresses in moves:
        if move == "restart":
            engine, lost = Engine(epoch=engine.epoch + 1), False
            records = engine.snapshot()
        elif move == "snapshot":
            records, lost = engine.snapshot(size=rng.randint(1, 8)), False
        elif move == "clear":
            records = [engine.change(KvOp.CLEARED, tier=tier)]
        elif move == "repeat":
            feed(projection, rng.choice(sent))
            continue
        elif move == "lose":
            engine.store(*addresses, tier=tier)
            lost = True
            continue
        else:
            records = [engine.store(*addresses, tier=tier) if move == "store" else engine.remove(*addresses, tier=tier)]
        feed(projection, *records)
        sent += records
        if not lost:
            assert not uncertain(projection)
            assert equal(projection, engine)
    feed(projection, *engine.snapshot(size=3))
    assert not uncertain(projection)
    assert equal(projection, engine)
