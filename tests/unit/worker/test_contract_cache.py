"""A contract is kept for the engine that proved it, and for no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.worker import Contract, ModalityContract
from services.worker.contract_cache import ContractCache, cache_key, folder_state, worth_keeping

PROVEN = ModalityContract(proven=True, variant="toy", verbatim_identity=True)
CONTRACT = Contract(model="m", text=PROVEN, image=PROVEN, video=ModalityContract(detail="has no videos"))


@pytest.fixture
def cache(tmp_path: Path) -> ContractCache:
    return ContractCache(tmp_path / "contracts" / "w1.json")


def test_what_is_kept_comes_back_under_its_key_only(cache: ContractCache) -> None:
    assert cache.get("one") is None
    cache.put("one", CONTRACT)
    assert cache.get("one") == CONTRACT
    assert cache.get("two") is None


def test_a_damaged_file_is_as_good_as_none(cache: ContractCache, tmp_path: Path) -> None:
    cache.put("one", CONTRACT)
    (tmp_path / "contracts" / "w1.json").write_text('{"key": "one", "contract": {"text": 3}}')
    assert cache.get("one") is None
    cache.put("one", CONTRACT)
    assert cache.get("one") == CONTRACT


def test_any_part_changes_the_key() -> None:
    assert cache_key("0.32.0", 1, [2]) == cache_key("0.32.0", 1, [2])
    assert len({cache_key("0.32.0", 1), cache_key("0.32.1", 1), cache_key("0.32.0", 2), cache_key("0.32.0")}) == 4


def test_a_changed_folder_is_another(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = folder_state(tmp_path)
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert folder_state(tmp_path) != before


def test_only_what_was_seen_whole_is_worth_keeping() -> None:
    assert worth_keeping(CONTRACT)
    assert not worth_keeping(CONTRACT.model_copy(update={"text": ModalityContract(variant="toy")}))
    unseen = PROVEN.model_copy(update={"verbatim_identity": None, "detail": "the identity probe failed"})
    assert not worth_keeping(CONTRACT.model_copy(update={"image": unseen}))
    assert not worth_keeping(CONTRACT.model_copy(update={"video": ModalityContract(variant="toy")}))
