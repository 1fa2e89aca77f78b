"""TensorRT-LLM's polled events: levels, partial blocks, media by name, and what is not of the known form."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from services.kv.address import Span, addresses
from services.kv.identity import engine_uuid
from services.kv.tier import Tier
from services.worker.engines.events import Batch, Cause, EngineEventError, Unrecognised
from services.worker.engines.trtllm import TrtllmEvents
from services.worker.translate import Translator

SIZE, VOCABULARY, IMAGE = 4, 1000, 55
TOKENS = list(range(1, 13))
CHAIN = addresses(TOKENS, SIZE)


def block(number: int, tokens: list[int] | None = None, **more: Any) -> dict[str, Any]:
    ids = tokens if tokens is not None else TOKENS[number * SIZE : (number + 1) * SIZE]
    return {
        "type": "stored_block", "block_hash": 100 + number, "cache_level": 0, "priority": 35,
        "tokens": [{"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in ids], **more,
    }  # fmt: skip


def stored(*blocks: dict[str, Any], parent: int | None = None) -> dict[str, Any]:
    return {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}


class Fed:
    """A translator behind the decoder."""

    def __init__(self) -> None:
        self.decoder = TrtllmEvents(SIZE, vocabulary=VOCABULARY, placeholder=IMAGE, media_tokens=frozenset({IMAGE}))
        self.translator = Translator(SIZE)
        self.number = -1

    def __call__(self, *data: dict[str, Any]) -> Fed:
        for one in data:
            self.translator.apply(self.decode(one))
        return self

    def decode(self, data: Any) -> Batch:
        self.number += 1
        return self.decoder.decode(orjson.dumps({"at": 1.5, "event": {"event_id": self.number, "data": data}}))

    def held(self, tier: Tier = Tier.DEVICE) -> set[int]:
        return set(self.translator.resident.published(tier))


@pytest.fixture
def fed() -> Fed:
    return Fed()


def test_blocks_of_an_event_are_a_chain(fed: Fed) -> None:
    fed({"type": "created", "num_blocks_per_cache_level": [64, 0]}, stored(block(0), block(1)))
    assert fed(stored(block(2), parent=101)).held() == set(CHAIN)
    assert fed({"type": "removed", "block_hashes": [102]}).held() == set(CHAIN[:2])


def test_partial_blocks_are_passed_over(fed: Fed) -> None:
    assert fed(stored(block(0), block(1, [5, 6]))).held() == set(CHAIN[:1])
    assert fed(stored(block(1), parent=100)).held() == set(CHAIN[:2])


def test_a_block_moves_between_levels(fed: Fed) -> None:
    fed(stored(block(0), block(1)))
    fed({"type": "updated", "block_hash": 101, "cache_level": {"type": "event_diff", "old_value": 0, "new_value": 1}})
    assert (fed.held(), fed.held(Tier.HOST)) == (set(CHAIN[:1]), {CHAIN[1]})
    fed({"type": "updated", "block_hash": 101, "cache_level": {"old_value": 1, "new_value": 0}})
    assert (fed.held(), fed.held(Tier.HOST)) == (set(CHAIN[:2]), set())
    fed({"type": "updated", "block_hash": 101, "priority": {"old_value": 1, "new_value": 0}})
    assert fed({"type": "removed", "block_hashes": [101, 100, 999]}).held() == set()
    assert fed.translator.unmatched == 0


def test_media_are_named_and_stand_as_placeholders(fed: Fed) -> None:
    keys = [{"type": "mm_key", "hash": engine_uuid(0xFACE), "start_offset": 0}]
    fed(stored(block(0, [1, 2, VOCABULARY + 1, VOCABULARY + 2], mm_keys=keys)))
    assert fed.held() == set(addresses([1, 2, IMAGE, IMAGE], SIZE, [Span(2, 2, 0xFACE)]))


def test_media_without_a_name_and_adapters_without_one_get_no_address(fed: Fed) -> None:
    fed(stored(block(0, [1, 2, VOCABULARY, 3]), block(1)), stored(block(2, [1, IMAGE, 2, 3])))
    fed(stored({**block(0), "lora_id": 3}))
    assert fed.held() == set()
    assert fed.translator.unaddressed == {
        Cause.UNNAMED_MEDIA: 2, Cause.UNKNOWN_PARENT: 1, Cause.UNNAMED_LORA: 1
    }  # fmt: skip


def test_what_comes_twice_counts_once(fed: Fed) -> None:
    fed(stored(block(0)), stored(block(0)), {"type": "removed", "block_hashes": [100]})
    assert fed.held() == set()


def test_new_pools_are_empty(fed: Fed) -> None:
    assert fed(stored(block(0)), {"type": "created", "num_blocks_per_cache_level": [64]}).held() == set()


def test_unknown_types_are_counted_and_unknown_fields_ignored(fed: Fed) -> None:
    assert fed.decode({"type": "compacted"}).events == [Unrecognised("compacted")]
    assert fed(stored({**block(0), "window": 7})).held() == {CHAIN[0]}


@pytest.mark.parametrize("payload", [b"", b"[]", b'{"at":1,"event":{}}', b'{"at":1,"event":{"event_id":1,"data":3}}'])
def test_what_is_no_event_is_an_error(fed: Fed, payload: bytes) -> None:
    with pytest.raises(EngineEventError):
        fed.decoder.decode(payload)


def test_a_malformed_event_is_an_error(fed: Fed) -> None:
    with pytest.raises(EngineEventError):
        fed.decode({"type": "stored", "blocks": [{"tokens": []}]})
