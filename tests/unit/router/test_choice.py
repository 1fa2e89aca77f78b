"""Choosing: the cheapest, seeded ties, softmax with a temperature, and how close it was."""

from __future__ import annotations

from collections import Counter

from services.router.choice import choose
from services.router.deciding import prompt_of
from services.router.policies import POLICIES
from services.router.situation import Parameters
from tests.unit.router.build import expanded, slot

PROMPT = prompt_of(expanded(tokens=128))


def choice(slots, seed: int = 1, **parameters):
    return choose(PROMPT, slots, POLICIES["kv"], Parameters(**parameters), seed)


def name(scored) -> str:
    return scored.terms.slot.life.worker_id


def test_the_cheapest_is_chosen_and_the_others_stand_by_cost() -> None:
    found = choice([slot("a", device=1), slot("b", device=3), slot("c")])
    assert name(found.chosen) == "b"
    assert [name(one) for one in found.others] == ["a", "c"]
    assert (found.ties, found.margin) == (1, 2.0)


def test_ties_are_broken_by_the_seed_and_evenly() -> None:
    slots = [slot("a"), slot("b"), slot("c", active_decode_blocks=50)]
    found = Counter(name(choice(slots, seed).chosen) for seed in range(300))
    assert set(found) == {"a", "b"}
    assert min(found.values()) > 100
    assert choice(slots).ties == 2
    assert choice(slots).margin == 0.0


def test_a_single_slot_has_no_margin() -> None:
    assert choice([slot("a")]).margin is None


def test_temperature_spreads_by_cost_and_cold_is_nearly_the_cheapest() -> None:
    slots = [slot("a", device=4), slot("b", device=2), slot("c")]
    warm = Counter(name(choice(slots, seed, temperature=1.0).chosen) for seed in range(600))
    assert warm["a"] > warm["b"] > warm["c"] > 0
    cold = Counter(name(choice(slots, seed, temperature=0.01).chosen) for seed in range(100))
    assert cold == {"a": 100}


def test_temperature_does_not_depend_on_the_scale_of_costs() -> None:
    small = [slot("a", device=1), slot("b")]
    large = [slot("a"), slot("b", active_decode_blocks=1000)]
    for seed in range(50):
        assert name(choice(small, seed, temperature=0.5).chosen) == name(choice(large, seed, temperature=0.5).chosen)
