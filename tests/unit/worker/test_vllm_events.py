"""vLLM's events as everybody's: removals of one place together, everything else in its order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.kv.tier import Tier
from services.worker.engines.events import Cleared, Removed, Stored, Unrecognised
from services.worker.engines.vllm import VllmEvents
from services.worker.engines.vllm_keys import KeyReader

STORED = {
    "type": "BlockStored", "block_hashes": [9], "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2,
    "lora_id": None, "medium": "GPU",
}  # fmt: skip


def removed(*hashes: int, medium: str | None = "GPU", **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": medium, **more}


def events(*sent: Any) -> list[Any]:
    return VllmEvents(KeyReader()).decode(msgspec.msgpack.encode([1.5, list(sent), 0])).events


def test_removals_one_after_the_other_are_one() -> None:
    assert events(removed(3), removed(2, 1)) == [Removed([3, 2, 1], Tier.DEVICE)]


@pytest.mark.parametrize(
    "other",
    [removed(2, medium="CPU"), removed(2, group_idx=1), removed(2, locality="REMOTE")],
    ids=["another tier", "another group", "another host"],
)
def test_removals_of_another_place_are_another_event(other: dict[str, Any]) -> None:
    found = events(removed(3), other, removed(1))
    assert [event.hashes for event in found] == [[3], [2], [1]]


def test_what_stands_between_keeps_its_place() -> None:
    cleared, new = {"type": "AllBlocksCleared"}, {"type": "New"}
    found = events(removed(3), STORED, removed(9), cleared, removed(4), new, removed(5))
    assert [type(event) for event in found] == [Removed, Stored, Removed, Cleared, Removed, Unrecognised, Removed]
    assert [event.hashes for event in found if isinstance(event, Removed)] == [[3], [9], [4], [5]]


def test_a_batch_of_both_forms_is_read_event_by_event() -> None:
    found = events(["BlockRemoved", [3], "GPU"], removed(2), ["AllBlocksCleared"])
    assert found == [Removed([3, 2], Tier.DEVICE), Cleared()]
