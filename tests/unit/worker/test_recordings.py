"""Both sides of routing on what a running vLLM 0.32.0 really sent: the agent's addresses are the router's."""

from __future__ import annotations

import pytest

from services.kv.tier import Tier
from services.worker.engines.events import Batch, Stored
from services.worker.engines.vllm import VllmEvents
from services.worker.engines.vllm_keys import KeyReader
from services.worker.translate import Translator
from tests.unit.worker.recordings import BLOCK_SIZE, Case, load

RECORDINGS = ("q25vl_bs16", "q3vl_bs16", "q2vl_evict_cbor_bytes")
FULL_REPORT = "a3_text_repeat_report_full"


def follow(name: str) -> list[tuple[Case, set[int]]]:
    """Feed a whole recording to an agent; after each case note what it publishes."""
    decoder, translator = VllmEvents(KeyReader()), Translator(BLOCK_SIZE)
    after = []
    for case in load(name):
        for payload in case.payloads:
            batch = decoder.decode(payload)
            if case.name == FULL_REPORT:
                without_announced_hits(batch)
            translator.apply(batch)
        after.append((case, set(translator.resident.published(Tier.DEVICE))))
    assert translator.unknown == 0
    assert translator.unmatched == 0
    return after


def without_announced_hits(batch: Batch) -> None:
    """``kv_cache_report_mode: full`` announces hits without new copies; the agent never lets that key through."""
    batch.events = [event for event in batch.events if not (isinstance(event, Stored) and event.parent is None)]


@pytest.mark.parametrize("name", RECORDINGS)
def test_after_each_case_the_agent_publishes_the_addresses_of_its_prompt(name: str) -> None:
    served = 0
    for case, published in follow(name):
        if case.prompt is not None:
            assert published.issuperset(case.all_addresses), case.name
            served += 1
    assert served >= 7


@pytest.mark.parametrize("name", ["q25vl_bs16", "q3vl_bs16"])
def test_without_eviction_it_publishes_nothing_else(name: str) -> None:
    expected: set[int] = set()
    for case, published in follow(name):
        if case.name == "z2_text_after_reset":
            # The reset is announced with the engine's next step.
            expected.clear()
        expected.update(case.all_addresses)
        assert published == expected, case.name


@pytest.mark.parametrize("name", ["q25vl_bs16", "q3vl_bs16"])
def test_the_overlap_before_each_case_is_what_the_engine_reports_as_cached(name: str) -> None:
    compared, published = 0, set[int]()
    for case, after in follow(name):
        if case.prompt is not None and case.cached_tokens is not None and case.name != "z2_text_after_reset":
            overlap = next(
                (index for index, address in enumerate(case.prompt_addresses) if address not in published),
                len(case.prompt_addresses),
            )
            usable = min(overlap, (len(case.prompt) - 1) // BLOCK_SIZE)
            assert usable * BLOCK_SIZE == case.cached_tokens, case.name
            compared += 1
        published = after
    assert compared >= 20


def test_evictions_leave_exactly_the_heads_of_the_evicted_prompts() -> None:
    after = {case.name: published for case, published in follow("q2vl_evict_cbor_bytes")}
    address = {case.name: case.all_addresses for case in load("q2vl_evict_cbor_bytes")}

    assert after["decode_40_tokens"] == {*address["img_A"], *address["decode_40_tokens"]}
    kept = {*address["img_A"], *address["decode_40_tokens"], *address["fill_0"]}
    assert after["fill_0"] == kept
    # Tails go first: one block of the image, then the rest of it and the decoded blocks, then the fillers' tails.
    assert after["fill_1"] == (kept := (kept - {address["img_A"][-1]}) | set(address["fill_1"]))
    gone = {*address["img_A"], *address["decode_40_tokens"], *address["fill_0"][6:]}
    assert after["fill_2"] == (kept := (kept - gone) | set(address["fill_2"]))
    gone = {*address["fill_0"], *address["fill_1"][6:]}
    assert after["fill_3"] == (kept := (kept - gone) | set(address["fill_3"]))
    gone = set(address["fill_1"][2:])
    assert after["img_A_again"] == (kept - gone) | set(address["img_A"])


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_published_set_stays_closed_under_prefixes(name: str) -> None:
    chains = [case.all_addresses for case in load(name) if case.prompt is not None]
    for case, published in follow(name):
        for chain in chains:
            held = [address in published for address in chain]
            assert held == sorted(held, reverse=True), case.name
