"""The recording with a pool of 40 blocks: decode blocks, evictions in order, blocks that come back.

It holds prompts, generated tokens and batches but no requests, so it is replayed on the scheduler itself. The image
is the recorded span: 48 tokens at 15.
"""

from __future__ import annotations

from typing import Any

import pytest

from services.engine_sim.events import encode_batch
from services.engine_sim.hashing import BlockHasher, HashForm
from services.engine_sim.kv_cache import KvCache
from services.engine_sim.request import EngineRequest, MediaSpan
from services.engine_sim.scheduler import Scheduler
from tests.unit.engine_sim.engine import step
from tests.unit.engine_sim.recorded import Renamed, payloads, recording

IMAGE_PAD = 151655


def media_of(token_ids: list[int]) -> list[MediaSpan]:
    pads = token_ids.count(IMAGE_PAD)
    return [MediaSpan("image", "a" * 64, token_ids.index(IMAGE_PAD), pads)] if pads else []


def replay(engine: Scheduler, case: dict[str, Any], generated: list[int]) -> list[bytes]:
    generated[:] = case["gen_token_ids"]
    prompt = case["prompt_token_ids"]
    engine.add(EngineRequest(case["case"], list(prompt), len(generated), media_of(prompt)))
    sent = []
    while engine.has_work:
        if events := step(engine)[1]:
            sent.append(encode_batch(0.0, events, 0))
    return sent


@pytest.mark.parametrize("form", ["bytes", "int"])
def test_the_same_batches_in_the_same_order(form: HashForm) -> None:
    generated: list[int] = []
    engine = Scheduler(
        KvCache(40, BlockHasher(16, form=form)), lambda request: generated[request.output_tokens], max_num_seqs=8
    )
    recorded, simulated = Renamed(), Renamed()
    cases = recording("q2vl_evict_cbor_bytes")["cases"]
    assert len(cases) == 7
    for case in cases:
        expected = [recorded.batch(payload) for payload in payloads(case)]
        assert [simulated.batch(payload) for payload in replay(engine, case, generated)] == expected, case["case"]


def test_the_recording_evicts_and_decodes() -> None:
    """Else the comparison would say little."""
    names = [
        event["type"]
        for case in recording("q2vl_evict_cbor_bytes")["cases"]
        for payload in payloads(case)
        for event in Renamed().batch(payload)[0]
    ]
    assert names.count("BlockRemoved") == 37
    assert names.count("BlockStored") == 9
