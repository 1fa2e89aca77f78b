"""Every wire form vLLM has had, from the vectors of tests/golden/vllm_events/wire_vectors.json."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.worker.engines.events import EngineEventError
from services.worker.engines.wire import AllBlocksCleared, BlockRemoved, BlockStored, UnknownEvent, decode_batch
from tests.unit.worker.recordings import wire_vectors

VECTORS = wire_vectors()
CASES = [(version, form) for version in VECTORS for form in ("int_hashes", "byte_hashes")]


def plain(value: Any) -> Any:
    """The vectors write bytes as {"__bytes_hex__": …}."""
    if isinstance(value, dict) and set(value) == {"__bytes_hex__"}:
        return bytes.fromhex(value["__bytes_hex__"])
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def named(event: Any, fields: list[str]) -> dict[str, Any]:
    """An event of the vectors as a map, whichever form it has."""
    if isinstance(event, dict):
        return {key: plain(value) for key, value in event.items()}
    names = {"BlockStored": fields, "BlockRemoved": ["block_hashes", "medium", "group_idx"], "AllBlocksCleared": []}
    return {"type": event[0], **dict(zip(names[event[0]], map(plain, event[1:]), strict=False))}


@pytest.mark.parametrize(("version", "form"), CASES)
def test_every_version_decodes_to_its_fields(version: str, form: str) -> None:
    vector = VECTORS[version]
    ts, events, rank = vector[form]["decoded"]

    batch = decode_batch(bytes.fromhex(vector[form]["payload_hex"]))

    assert (batch.ts, batch.rank) == (ts, rank)
    kinds = {"BlockStored": BlockStored, "BlockRemoved": BlockRemoved, "AllBlocksCleared": AllBlocksCleared}
    assert len(batch.events) == len(events)
    for found, written in zip(batch.events, events, strict=True):
        expected = named(written, vector["fields"])
        assert isinstance(found, kinds[expected.pop("type")])
        for name, value in expected.items():
            if hasattr(found, name):
                assert getattr(found, name) == value, name


def payload(*events: Any, rank: Any = ...) -> bytes:
    body = [1.5, list(events)]
    return msgspec.msgpack.encode(body if rank is ... else [*body, rank])


STORED = ["BlockStored", [1], None, [1, 2, 3, 4], 4, None]


@pytest.mark.parametrize("rank", [..., None])
def test_the_rank_may_be_absent_or_nil(rank: Any) -> None:
    assert decode_batch(payload(STORED, rank=rank)).rank is None


def test_fields_of_later_versions_are_ignored() -> None:
    longer = [*STORED, *[None] * 10, "field of 0.40", {"and": "more"}]
    with_keys = {"type": "BlockRemoved", "block_hashes": [-7], "invented": [1, {}]}

    stored, removed = decode_batch(payload(longer, with_keys)).events

    assert isinstance(stored, BlockStored)
    assert stored.token_ids == [1, 2, 3, 4]
    assert isinstance(removed, BlockRemoved)
    assert removed.block_hashes == [-7]


def test_a_batch_of_more_fields_is_a_batch() -> None:
    assert decode_batch(msgspec.msgpack.encode([1.5, [], 0, "more"])).rank == 0


def test_hashes_above_i64_and_bytes_stay_what_they_are() -> None:
    big, raw = 2**64 - 1, bytes(range(32))
    (event,) = decode_batch(payload({"type": "BlockRemoved", "block_hashes": [big, raw]})).events
    assert isinstance(event, BlockRemoved)
    assert event.block_hashes == [big, raw]


@pytest.mark.parametrize("event", [["BlockMigrated", 1], {"type": "BlockMigrated", "x": 1}])
def test_an_unknown_type_is_named_and_does_not_cost_its_neighbours(event: Any) -> None:
    events = decode_batch(payload(event, STORED)).events
    assert events[0] == UnknownEvent("BlockMigrated")
    assert isinstance(events[1], BlockStored)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "payload of 0 bytes"),
        (b"\xc1rubbish", "is not \\[ts, \\[events\\], rank\\]"),
        (msgspec.msgpack.encode({"ts": 1}), "is not \\[ts, \\[events\\], rank\\]"),
        (payload(["BlockStored", "no list", None, [], 4, None]), "KV event BlockStored"),
        (payload({"type": "BlockRemoved"}), "KV event BlockRemoved"),
        (payload({"no": "type"}), "KV event without a type"),
        (payload([]), "KV event without a type"),
        (payload(7), "KV event without a type"),
        (payload(["BlockStored", [1], None, [1.5], 4, None]), "KV event BlockStored"),
        (payload({"type": "BlockStored", "block_hashes": [b"x" * 2000000]}), "KV event BlockStored"),
        (b"\x92\x01\x91" + b"\x91" * 100_000, "(?s)."),
    ],
)
def test_what_is_no_batch_is_a_typed_error(raw: bytes, message: str) -> None:
    with pytest.raises(EngineEventError, match=message):
        decode_batch(raw)
