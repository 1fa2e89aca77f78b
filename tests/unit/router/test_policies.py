"""Every policy does what its name says, and only with finite numbers."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from services.router.choice import choose
from services.router.deciding import prompt_of
from services.router.draw import Draw, seed_of
from services.router.policies import POLICIES
from services.router.situation import Parameters
from tests.unit.router.build import expanded, slot

FOUR = [slot(f"w{number}") for number in range(4)]


def chosen(policy: str, slots, request=None, **parameters) -> str:
    prompt = prompt_of(request or expanded())
    seed = seed_of(prompt.request, 1)
    return choose(prompt, slots, POLICIES[policy], Parameters(**parameters), seed).chosen.terms.slot.life.worker_id


@pytest.mark.parametrize("name", POLICIES)
def test_costs_are_finite_and_repeatable(name: str) -> None:
    slots = [slot(f"w{n}", device=n, active_requests=n, active_decode_blocks=5 * n) for n in range(5)]
    prompt = prompt_of(expanded(session_id="s1"))
    first, again = (choose(prompt, slots, POLICIES[name], Parameters(turn=3), 42) for _ in range(2))
    assert first == again
    assert all(math.isfinite(one.cost) for one in (first.chosen, *first.others))


@pytest.mark.parametrize("name", POLICIES)
def test_a_single_slot_is_always_chosen(name: str) -> None:
    assert chosen(name, [slot("only")]) == "only"


def test_kv_prefers_the_cache_until_its_holder_is_too_busy() -> None:
    assert chosen("kv", [slot("warm", device=7), slot("cold")]) == "warm"
    busy = slot("warm", device=7, active_decode_blocks=40)
    assert chosen("kv", [busy, slot("cold")]) == "cold"


def test_kv_counts_slots_of_other_block_sizes_in_the_same_blocks() -> None:
    request = expanded(tokens=128, addresses={16: list(range(8)), 32: list(range(4))})
    small, large = slot("small", active_decode_blocks=1), slot("large", block_size=32, active_decode_blocks=2)
    assert chosen("kv", [small, large], request) == "small"


def test_round_robin_takes_turns() -> None:
    turns = [chosen("round_robin", FOUR, turn=float(turn)) for turn in range(8)]
    assert turns == ["w0", "w1", "w2", "w3"] * 2


def test_random_is_even_over_requests() -> None:
    found = Counter(chosen("random", FOUR, expanded(f"r{number}")) for number in range(400))
    assert set(found) == {"w0", "w1", "w2", "w3"}
    assert min(found.values()) > 60


def test_least_loaded_ignores_caches() -> None:
    slots = [slot("warm", device=7, active_decode_blocks=2), slot("cold", active_decode_blocks=1)]
    assert chosen("least_loaded", slots) == "cold"


def test_power_of_two_never_takes_the_most_loaded_and_not_always_the_least() -> None:
    slots = [slot(f"w{n}", active_decode_blocks=n) for n in range(4)]
    found = {chosen("power_of_two", slots, expanded(f"r{number}")) for number in range(200)}
    assert found == {"w0", "w1", "w2"}


def test_prefix_affinity_sends_a_prefix_home_whatever_follows_it() -> None:
    homes = {chosen("prefix_affinity", FOUR, expanded(f"r{n}", tokens=512 + 64 * n)) for n in range(20)}
    assert len(homes) == 1
    others = {chosen("prefix_affinity", FOUR, expanded("r", root=root)) for root in range(30)}
    assert len(others) == 4


def test_prefix_affinity_keeps_most_homes_when_a_worker_leaves() -> None:
    prompts = [expanded(f"r{root}", root=root) for root in range(200)]
    before = [chosen("prefix_affinity", FOUR, prompt) for prompt in prompts]
    after = [chosen("prefix_affinity", FOUR[:3], prompt) for prompt in prompts]
    assert all(a == b for a, b in zip(after, before, strict=True) if b != "w3")


def test_prefix_affinity_keeps_sessions_together() -> None:
    homes = {chosen("prefix_affinity", FOUR, expanded("r", root=root, session_id="s")) for root in range(10)}
    assert len(homes) == 1


def test_prefix_affinity_spills_from_an_overloaded_home() -> None:
    home = chosen("prefix_affinity", FOUR)
    crowded = [slot(one.life.worker_id, active_requests=10 * (one.life.worker_id == home)) for one in FOUR]
    assert chosen("prefix_affinity", crowded) != home


def test_ttft_weighs_prefill_against_the_queue() -> None:
    waiting = slot("warm", device=7, reported={"waiting": 3.0})
    assert chosen("ttft", [waiting, slot("cold")], prefill_rate=100_000.0) == "cold"
    assert chosen("ttft", [waiting, slot("cold")], prefill_rate=1000.0) == "warm"


def test_the_generator_is_splitmix64() -> None:
    draw = Draw(1234567)
    assert [draw.integer() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_seeds_differ_by_request_and_attempt() -> None:
    assert len({seed_of("/r1", 1), seed_of("/r1", 2), seed_of("/r2", 1), seed_of("t/r1", 1)}) == 4
