"""The stage on the bus: every resolved request ends as expanded, refused or cancelled, and the next one is served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog

from schemas.control import Control, ControlKind
from schemas.expanded import Expanded
from schemas.lifecycle import Lifecycle, LifecycleEvent
from schemas.media import MediaResolved
from schemas.request import Claim
from schemas.work import Response
from schemas.worker import Worker
from services.kv.reason import Reason
from services.layout.app import build
from services.layout.cards import Cards
from services.runtime.blobs import Blobs
from services.runtime.settings import Settings
from services.runtime.topics import CONTROL, EXPANDED, LIFECYCLE, MEDIA_RESOLVED, WORKERS
from tests.fakes.harness import Harness
from tests.unit.layout.golden import MODELS
from tests.unit.layout.workers import worker

REPLY_TO = "kvroute.responses.g1.v1"
BODY = {"model": "qwen", "messages": [{"role": "user", "content": "hello, who are you and what do you do all day?"}]}
CARDS = Cards({"qwen": MODELS / "qwen2.5-vl"}, cache_tokens=10_000)

Made = Callable[..., Harness]


@pytest.fixture
def stage(tmp_path: Path) -> Made:
    def make(cards: Cards = CARDS, **settings: Any) -> Harness:
        harness = Harness("layout", Settings(data_dir=tmp_path, **settings))
        build(harness.settings, harness, cards=cards)  # type: ignore[arg-type]
        return harness

    return make


def request(harness: Harness, **fields: Any) -> MediaResolved:
    now = harness.clock.now_ms()
    given = {"request_id": "r1", "model": "qwen", "body": orjson.dumps(BODY).decode(), "reply_to": REPLY_TO, **fields}
    return MediaResolved(**{"deadline_ms": now + 1000, "created_at_ms": now, **given})


async def push(harness: Harness, **fields: Any) -> list[Expanded]:
    await harness.push(MEDIA_RESOLVED, request(harness, **fields))
    return harness.sender.messages(EXPANDED.name, Expanded)


def refusal(harness: Harness) -> tuple[int | None, str | None]:
    """Status and code of the only refusal, as the sender hears it."""
    (fact,) = harness.sender.messages(LIFECYCLE.name, Lifecycle)
    (answer,) = harness.sender.messages(REPLY_TO, Response)
    assert (fact.stage, fact.event, answer.final) == ("layout", LifecycleEvent.REFUSED, True)
    assert answer.error is not None
    assert (answer.error.status, answer.error.code) == (fact.status, fact.code)
    return fact.status, fact.code


async def test_a_request_is_expanded_for_the_block_sizes_of_live_workers(stage: Made) -> None:
    harness = stage(block_sizes=(64,))
    await harness.push(WORKERS, worker("w1"))
    await harness.push(WORKERS, worker("w2", block_size=8))
    (found,) = await push(harness)
    assert found.reason is None
    assert sorted(found.addresses) == [8, 16, 64]
    assert "layout" in found.timings_ms
    assert harness.sender.sent[-1].key == found.key


async def test_a_lora_is_resolved_to_its_model(stage: Made) -> None:
    harness = stage()
    await harness.push(WORKERS, worker(loras=["sql"]))
    (found,) = await push(harness, model="sql")
    assert (found.model, found.lora, found.reason) == ("qwen", "sql", None)


async def test_without_a_worker_text_is_not_proven_but_goes_on(stage: Made) -> None:
    (found,) = await push(stage())
    assert (found.reason, found.exact_tokens, found.addresses) == (Reason.CONTRACT_MISSING, 0, {})


async def test_contracts_can_be_waived(stage: Made) -> None:
    (found,) = await push(stage(layout_require_contract=False, block_sizes=(16,)))
    assert found.reason is None
    assert len(found.addresses[16]) == found.exact_tokens // 16


async def test_a_worker_without_a_model_folder_is_routed_by_load(stage: Made) -> None:
    harness = stage(Cards({}))
    await harness.push(WORKERS, worker())
    (found,) = await push(harness)
    assert (found.reason, found.exact_tokens) == (Reason.TEMPLATE_MISSING, 0)


async def test_a_folder_that_cant_be_used_is_told_and_routed_by_load(stage: Made, tmp_path: Path) -> None:
    problems: list[tuple[str, str]] = []
    harness = stage(Cards({"qwen": tmp_path}, on_problem=lambda *told: problems.append(told)))
    await harness.push(WORKERS, worker())
    await push(harness)
    (_, found) = await push(harness, request_id="r2")
    assert found.reason is Reason.TEMPLATE_MISSING
    assert [model for model, _ in problems] == ["qwen"]
    assert "config.json" in problems[0][1]


async def test_a_model_nobody_knows_is_refused(stage: Made) -> None:
    harness = stage()
    assert await push(harness, model="nobody") == []
    assert refusal(harness) == (404, "model_not_found")


async def test_a_passed_deadline_ends_the_request(stage: Made) -> None:
    harness = stage()
    assert await push(harness, deadline_ms=harness.clock.now_ms()) == []
    assert refusal(harness) == (504, "deadline_exceeded")


async def test_a_cancelled_request_is_dropped(stage: Made) -> None:
    harness = stage()
    await harness.push(CONTROL, Control(kind=ControlKind.CANCEL, at_ms=0, request_id="r1"))
    assert await push(harness) == []
    (fact,) = harness.sender.messages(LIFECYCLE.name, Lifecycle)
    assert fact.event is LifecycleEvent.CANCELLED
    assert len(await push(harness, request_id="r2")) == 1


async def test_a_claimed_body_is_fetched_and_stays_claimed(stage: Made) -> None:
    harness = stage(layout_require_contract=False, block_sizes=(16,))
    claim = await Blobs.of(harness.settings).put(orjson.dumps(BODY))
    (found,) = await push(harness, body=None, body_claim=claim)
    assert (found.reason, found.body, found.body_claim) == (None, None, claim)


async def test_a_claimed_body_that_is_gone(stage: Made) -> None:
    harness = stage()
    assert await push(harness, body=None, body_claim=Claim(uri="blob:" + "0" * 32, size=1)) == []
    assert refusal(harness) == (410, "body_gone")


@pytest.mark.parametrize("body", ["", "[]", "null", "{", "[" * 10_000])
async def test_a_body_that_is_no_object(stage: Made, body: str) -> None:
    harness = stage()
    assert await push(harness, body=body) == []
    assert refusal(harness) == (400, "invalid_request")


@pytest.mark.parametrize("value", [None, b"", b"null", b"{", b"{}", b"\xff"])
async def test_a_record_that_is_none_goes_to_the_dead_letters(stage: Made, value: bytes | None) -> None:
    harness = stage()
    await harness.push(MEDIA_RESOLVED, value, key="k")
    await harness.push(MEDIA_RESOLVED, request(harness, body=None))
    assert [letter.code for letter in harness.dead_letters][1] == "no_body"
    assert len(await push(harness)) == 1


async def test_a_dead_letters_message_holds_no_payload(stage: Made) -> None:
    harness = stage()
    await harness.push(MEDIA_RESOLVED, b'{"request_id": "a secret/with a slash", "model": 7}', key="k")
    assert "secret" not in harness.dead_letters[0].message


async def test_workers_come_change_and_go(stage: Made) -> None:
    harness = stage()
    await harness.push(WORKERS, worker())
    await harness.push(WORKERS, Worker.model_validate(worker().model_dump() | {"block_size": 32}))
    assert sorted((await push(harness))[0].addresses) == [32]
    await harness.push(WORKERS, None, key="w1")
    assert (await push(harness))[1].addresses == {}


async def test_operators_hear_of_each_change_of_a_models_videos(stage: Made) -> None:
    """Once its folder was read: before that nobody knows."""
    cards = Cards({"qwen": MODELS / "qwen2.5-vl"})
    proven = worker().contract
    assert proven is not None
    video = proven.image.model_copy(update={"sampling": "qwen2_vl/fps=2"})
    with structlog.testing.capture_logs() as logs:
        harness = stage(cards)
        await harness.push(WORKERS, worker("w0"))
        cards.get("qwen")
        for contract in (proven, proven.model_copy(update={"video": video})):
            await harness.push(WORKERS, worker("w0").model_copy(update={"contract": contract}))
        await harness.push(WORKERS, worker("w2"))
        await harness.push(WORKERS, worker("w3", "folderless"))
    said = [log for log in logs if log["event"].startswith("exact video routing")]
    assert [(log["event"].split()[-1], log["model"], log.get("reason")) for log in said] == [
        ("disabled", "qwen", "contract_missing"),
        ("enabled", "qwen", None),
        ("disabled", "qwen", "contract_missing"),
        ("disabled", "folderless", "unsupported_model"),
    ]


async def test_models_are_loaded_beside_the_start(stage: Made) -> None:
    cards = Cards({"qwen": MODELS / "qwen2.5-vl"})
    harness = stage(cards)
    await harness.start()
    for task in harness.tasks:
        await task
    assert cards._loaded["qwen"] is not None
    await harness.stop()


def test_cards_come_from_the_settings(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "m1").symlink_to(MODELS / "qwen3-vl")
    cards = Cards.of(Settings(models_dir=tmp_path, models={"m2": str(MODELS / "qwen2-vl")}))
    assert cards.names == ["m1", "m2"]
    found = cards.get("m1")
    assert found is not None
    assert (found.card.name, found.card.variant) == ("m1", "qwen3_vl")
    assert cards.get("nobody") is None
    assert Cards.of(Settings(models_dir=tmp_path / "nowhere")).names == []
