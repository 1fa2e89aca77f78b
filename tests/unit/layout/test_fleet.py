"""The newest registration of every worker counts."""

from __future__ import annotations

from typing import Any

from schemas.worker import WorkerState
from services.kv.reason import Reason
from services.layout.contract import NO_VIDEO, Proof
from services.layout.fleet import Fleet
from services.layout.routing_events import VideoRouting
from tests.unit.layout.workers import worker


def fleet(*workers: Any, **options: Any) -> Fleet:
    made = Fleet(**options)
    for registered in workers:
        made.register(registered)
    return made


def test_block_sizes_are_those_of_live_workers() -> None:
    found = fleet(
        worker("w1"), worker("w2", block_size=32), worker("w3", block_size=64, state=WorkerState.DRAINING),
        worker("w4", model="other", block_size=128),
    )  # fmt: skip
    assert found.block_sizes("qwen") == {16, 32}
    assert [w.worker_id for w in found.live("qwen")] == ["w1", "w2"]
    assert found.block_sizes("nobody") == set()


def test_a_draining_worker_still_serves_a_retired_one_does_not() -> None:
    assert fleet(worker(state=WorkerState.DRAINING)).serves("qwen")
    assert not fleet(worker(state=WorkerState.RETIRED)).serves("qwen")


def test_a_newer_registration_takes_the_place_of_the_older() -> None:
    found = fleet(worker("w1", model="old"))
    assert found.register(worker("w1", model="new")) == {"old", "new"}
    assert (found.serves("old"), found.serves("new")) == (False, True)


def test_a_registration_of_an_older_epoch_changes_nothing() -> None:
    found = fleet(worker("w1").model_copy(update={"epoch": 2}))
    assert found.register(worker("w1", state=WorkerState.RETIRED)) == set()
    assert found.serves("qwen")


def test_a_tombstone_takes_it_away() -> None:
    found = fleet(worker("w1"))
    assert found.forget("w1") == {"qwen"}
    assert found.forget("w1") == set()
    assert not found.serves("qwen")


def test_an_adapters_name_stands_for_its_model_with_the_adapter() -> None:
    found = fleet(worker(loras=["sql"]), worker("w2", model="sql2", loras=["qwen"]))
    assert found.resolve("sql") == ("qwen", "sql")
    assert found.resolve("qwen") == ("qwen", None), "a model's own name comes first"
    assert found.resolve("nobody") == ("nobody", None)
    found.forget("w1")
    assert found.resolve("sql") == ("sql", None)


def test_what_is_proven_follows_the_registrations() -> None:
    found = fleet(worker("w1"))
    assert found.proof("qwen", "qwen2_5_vl").text is None
    found.register(worker("w2", contract=None))
    text = found.proof("qwen", "qwen2_5_vl").text
    assert text is not None
    assert text[0] is Reason.CONTRACT_MISSING
    found.forget("w2")
    assert found.proof("qwen", "qwen2_5_vl").text is None
    assert fleet(require_contract=False).proof("qwen", "x").text is None


class TestVideoRouting:
    def test_a_change_is_said_once(self) -> None:
        said: list[tuple[str, dict[str, Any]]] = []

        class Log:
            def info(self, event: str, **fields: Any) -> None:
                said.append((event, fields))

        routing = VideoRouting(Log())
        off = Proof(video=NO_VIDEO)
        for proof in (off, off, Proof(), Proof(), off, None, off):
            routing.note("qwen", proof)
        disabled = {"model": "qwen", "reason": "unsupported_media", "detail": NO_VIDEO[1]}
        assert said == [
            ("exact video routing disabled", disabled),
            ("exact video routing enabled", {"model": "qwen"}),
            ("exact video routing disabled", disabled),
            ("exact video routing disabled", disabled),
        ]
