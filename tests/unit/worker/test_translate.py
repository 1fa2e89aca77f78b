"""Engine events to addresses: the map, the references, the inheritance, and what gets no address."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from services.kv.address import Span, addresses
from services.kv.tier import Tier
from services.worker.engines.events import Batch, Cause, Cleared, EngineHash, Event, Keys, Removed, Stored, Unrecognised
from services.worker.translate import Translator

SIZE = 4
TOKENS = list(range(1, 25))
PLAIN = addresses(TOKENS, SIZE)


def stored(
    hashes: Sequence[EngineHash], parent: EngineHash | None = None, *, first: int = 0, tier: Tier | None = Tier.DEVICE,
    lora: str | None = None, keys: Keys | None = None, group: int | None = None, reusable: bool = True,
) -> Stored:  # fmt: skip
    """Blocks of TOKENS from block ``first`` on."""
    tokens = TOKENS[first * SIZE : (first + len(hashes)) * SIZE]
    return Stored(list(hashes), parent, tokens, SIZE, tier, lora, keys or Keys(), group, reusable)


def fed(*events: Event) -> Translator:
    translator = Translator(SIZE)
    translator.apply(Batch(0.0, list(events)))
    return translator


def held(translator: Translator, tier: Tier = Tier.DEVICE) -> set[int]:
    return set(translator.resident.published(tier))


def test_a_chain_in_one_event_and_its_continuation_in_the_next() -> None:
    translator = fed(stored([b"a", b"b"]), stored([b"c"], b"b", first=2))
    assert held(translator) == set(PLAIN[:3])
    assert translator.unknown == 0


def test_salt_and_lora_stand_at_the_root_and_are_inherited() -> None:
    translator = fed(stored([1], lora="adapter", keys=Keys(salt="s")), stored([2], 1, first=1))
    assert held(translator) == set(addresses(TOKENS[:8], SIZE, lora="adapter", cache_salt="s"))


def test_media_identities_enter_the_blocks_they_overlap() -> None:
    translator = fed(stored([1, 2, 3], keys=Keys(media=[(), (7,), (7, 9)])))
    assert held(translator) == set(addresses(TOKENS[:12], SIZE, [Span(6, 3, 7), Span(9, 2, 9)]))


def test_two_copies_are_two_references() -> None:
    translator = fed(stored([1, 2]), stored([2], 1, first=1))
    translator.apply(Batch(0.0, [Removed([2])]))
    assert held(translator) == set(PLAIN[:2])
    translator.apply(Batch(0.0, [Removed([2])]))
    assert held(translator) == set(PLAIN[:1])


def test_two_engine_hashes_of_one_content_hold_one_address() -> None:
    translator = fed(stored([1]), stored([b"other"]), Removed([1]))
    assert held(translator) == set(PLAIN[:1])
    translator.apply(Batch(0.0, [Removed([b"other"])]))
    assert held(translator) == set()


def test_tiers_are_counted_apart_and_a_copy_may_be_named_by_hash_alone() -> None:
    by_name = Stored([1, 2, 77], None, [], 0, Tier.HOST)
    translator = fed(stored([1, 2]), by_name, Removed([1, 2]))
    assert held(translator) == set()
    assert held(translator, Tier.HOST) == set(PLAIN[:2])
    assert translator.unaddressed == {Cause.UNKNOWN_BLOCK: 1}
    # What stands on the host still is a parent.
    translator.apply(Batch(0.0, [stored([3], 2, first=2)]))
    assert held(translator) == {PLAIN[2]}


def test_a_forgotten_block_can_come_back() -> None:
    translator = fed(stored([1, 2]), Removed([2]), Removed([1]), stored([1, 2]))
    assert held(translator) == set(PLAIN[:2])


def test_clearing_forgets_everything_in_every_tier() -> None:
    translator = fed(stored([1, 2]), Stored([1], None, [], 0, Tier.HOST), Cleared(), stored([3], 2, first=2))
    assert held(translator) == held(translator, Tier.HOST) == set()
    assert translator.unaddressed == {Cause.UNKNOWN_PARENT: 1}


def test_children_of_the_unknown_are_unknown() -> None:
    translator = fed(stored([2, 3], 1, first=1), stored([4], 3, first=3))
    assert held(translator) == set()
    assert translator.unaddressed == {Cause.UNKNOWN_PARENT: 3}


def test_from_an_unaddressable_block_on_nothing_is_addressed() -> None:
    keys = Keys(addressable=1, cause=Cause.PROMPT_EMBEDS)
    translator = fed(stored([1, 2, 3], keys=keys), stored([4], 3, first=3))
    assert held(translator) == set(PLAIN[:1])
    assert translator.unaddressed == {Cause.PROMPT_EMBEDS: 2, Cause.UNKNOWN_PARENT: 1}


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (Stored([1, 2], None, TOKENS[:7], SIZE), Cause.MISFIT),
        (Stored([1, 2], None, TOKENS[:16], 8), Cause.MISFIT),
        (Stored([1, 2], None, [*TOKENS[:7], -1], SIZE), Cause.MISFIT),
        (Stored([1, 2], None, [*TOKENS[:7], 1 << 32], SIZE), Cause.MISFIT),
        (stored([1, 2], tier=None), Cause.OTHER_PLACE),
        (stored([1, 2], group=1, reusable=False), Cause.OTHER_GROUP),
    ],
)
def test_what_does_not_fit_is_skipped_whole_and_counted(event: Stored, cause: Cause) -> None:
    translator = fed(event)
    assert held(translator) == set()
    assert translator.unaddressed == {cause: 2}


def test_removals_of_other_groups_and_places_take_nothing_away() -> None:
    translator = fed(
        stored([1], group=0), stored([1], group=1, reusable=False), Removed([1], group=1), Removed([1], tier=None)
    )
    assert held(translator) == set(PLAIN[:1])


def test_an_engine_with_other_cache_groups_is_called_hybrid() -> None:
    assert not fed(stored([1], group=0)).hybrid
    assert fed(stored([1], group=0), stored([1], group=1, reusable=False)).hybrid


def test_the_unexpected_is_counted() -> None:
    translator = fed(Removed([5]), Unrecognised("BlockMigrated"))
    assert translator.unmatched == 1
    assert translator.unrecognised == {"BlockMigrated": 1}


def test_a_watched_identity_is_seen_when_it_comes_back() -> None:
    translator = Translator(SIZE)
    translator.watch(7)
    translator.apply(Batch(0.0, [stored([1], keys=Keys(media=[(8,)]))]))
    assert not translator.seen
    translator.apply(Batch(0.0, [stored([2, 3], keys=Keys(media=[(), (7,)]))]))
    assert translator.seen == {7}
    translator.unwatch(7)
    assert not translator.seen


def test_a_block_size_must_be_positive() -> None:
    with pytest.raises(ValueError, match="block_size is 0"):
        Translator(0)
