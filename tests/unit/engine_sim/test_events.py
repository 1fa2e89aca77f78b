"""The wire form is vLLM 0.32's, byte for byte; the vectors were encoded by vLLM itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.engine_sim.events import AllBlocksCleared, BlockStored, KvEvent, encode_batch, removed

VECTORS = json.loads((Path(__file__).parents[2] / "golden/vllm_events/wire_vectors.json").read_text())["0.32.0"]


def test_numbers_as_hashes() -> None:
    hashes: list[int | bytes] = [12003956299410006108, 5566960992643636181]
    events: list[KvEvent] = [
        BlockStored(
            block_hashes=hashes,
            parent_block_hash=None,
            token_ids=list(range(100, 108)),
            block_size=4,
            lora_id=None,
            medium="GPU",
            lora_name=None,
            extra_keys=[(("mm-hash-A", 2),), None],
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        ),
        removed(hashes[1]),
        AllBlocksCleared(),
    ]
    assert encode_batch(1.5, events, 0).hex() == VECTORS["int_hashes"]["payload_hex"]


def test_bytes_as_hashes() -> None:
    event = BlockStored(
        block_hashes=[bytes(range(32))],
        parent_block_hash=b"\xff" * 32,
        token_ids=[1, 2, 3, 4],
        block_size=4,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        extra_keys=[(("mm-hash-A", -2), "salt")],
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    assert encode_batch(1.5, [event], 0).hex() == VECTORS["byte_hashes"]["payload_hex"]


@pytest.mark.parametrize("field", VECTORS["fields"])
def test_every_field_of_the_version_is_there(field: str) -> None:
    assert field in BlockStored.__struct_fields__
