"""Agents beside simulated SGLang and TensorRT-LLM servers: contract, work, what their caches hold, what gets lost."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from schemas.media import MediaKind
from schemas.work import WorkMedia
from services.kv.address import Span, addresses
from services.layout.card import ModelCard
from services.layout.layouter import Layouter
from services.layout.shapes import MediaShape
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.worker import agent, app, life, polling_stream, probe_requests, probes_by_events, slot
from services.worker.probe_requests import png_uri
from tests.fakes import Harness
from tests.unit.worker.conftest import Stand
from tests.unit.worker.foreign_engines import ForeignEngine, SglangServer, TrtllmServer

MODEL = Path(__file__).parents[2] / "models" / "qwen2.5-vl"
TEXT = "the quick brown fox jumps over the lazy dog " * 12
FACE = 0xFACE_0000_1234_5678


@pytest.fixture(scope="module")
def layouter() -> Layouter:
    return Layouter(ModelCard.load(MODEL, "m"))


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    # The simulated servers' caches are plain dictionaries of prefixes: large images take them long.
    monkeypatch.setattr(probe_requests, "MIDDLE_IMAGE", (280, 224))
    monkeypatch.setattr(probe_requests, "above_bound", lambda bound: None)
    monkeypatch.setattr(slot, "QUIET_SECONDS", (0.05, 0.2))
    monkeypatch.setattr(life, "HEALTH_SECONDS", 0.05)
    monkeypatch.setattr(agent, "ENGINE_POLL_SECONDS", 0.02)
    monkeypatch.setattr(agent, "DRAIN_NOTICE_SECONDS", 0.02)
    monkeypatch.setattr(polling_stream, "AWAY_SECONDS", 0.05)

    @asynccontextmanager
    async def start(engine: ForeignEngine, name: str, **more: Any) -> AsyncIterator[Stand]:
        async with engine:
            settings = Settings(
                worker_id="w1", worker_engine=name, worker_engine_url=engine.url, worker_model_dir=MODEL,
                data_dir=tmp_path, drain_seconds=1.0, **more,
            )  # fmt: skip
            harness = Harness("agent", settings)
            made = Stand(engine, harness)
            made.agent = app.build(settings, cast(Service, harness), randomness=random.Random(1))
            try:
                yield await made.start()
            finally:
                await harness.stop()

    return start


def chat(*, image: bool, **more: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": png_uri(168, 224, 3)}}] if image else []
    content = [{"type": "text", "text": "See: "}, *parts, {"type": "text", "text": TEXT}]
    return {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 1, **more}


async def run(stand: Stand, name: str, *, image: bool, **more: Any) -> None:
    media = [WorkMedia(kind=MediaKind.IMAGE, message=0, part=1, identity=FACE)] if image else []
    body = orjson.dumps(chat(image=image)).decode()
    await stand.give(stand.work(name, body=body, media=media, **more))
    await stand.until(lambda: any(fact.request_id == name and fact.event == "finished" for fact in stand.facts))


def due(layouter: Layouter, block_size: int, *, image: bool) -> set[int]:
    view = layouter.view(chat(image=image), [MediaShape(MediaKind.IMAGE, 168, 224)] if image else [])
    return set(addresses(view.token_ids, block_size, [Span(span.offset, span.length, FACE) for span in view.spans]))


@pytest.mark.parametrize(("page", "block_size"), [(1, 16), (16, 16), (4, 32)])
async def test_sglang_is_proven_and_its_pages_are_routed_as_blocks(
    page: int, block_size: int, layouter: Layouter, beside: Callable[..., Any]
) -> None:
    sizes = {} if block_size == 16 else {"block_sizes": (block_size,)}
    async with beside(SglangServer(layouter, page), "sglang", **sizes) as stand:
        (worker,) = stand.registrations
        assert (worker.engine, worker.engine_version, worker.block_size) == ("sglang", "0.5.13", block_size)
        contract = worker.contract
        assert contract.text.proven, contract.text.detail
        assert (contract.image.proven, contract.image.verbatim_identity) == (True, True), contract.image.detail
        assert not contract.video.proven
        assert (stand.heartbeats[-1].load.running, stand.heartbeats[-1].load.kv_usage) == (2, 0.5)
        await run(stand, "r1", image=True)
        await stand.until(lambda: due(layouter, block_size, image=True) <= stand.resident())
        await run(stand, "r2", image=False)
        await stand.until(lambda: due(layouter, block_size, image=False) <= stand.resident())


async def test_sglang_blocks_go_with_their_pages_and_salted_ones_never_come(
    layouter: Layouter, beside: Callable[..., Any]
) -> None:
    engine = SglangServer(layouter)
    async with beside(engine, "sglang") as stand:
        await run(stand, "r1", image=True)
        chain = due(layouter, 16, image=True)
        await stand.until(lambda: chain <= stand.resident())
        longest = max(engine.cached, key=lambda prefix: len(prefix[0]) if FACE_PAD in prefix[0] else 0)
        for end in range(len(longest[0]), len(longest[0]) // 16 * 16 - 17, -1):
            await engine.evict((longest[0][:end], ""))
        await stand.until(lambda: len(chain & stand.resident()) == len(chain) - 2)
        before = stand.device()
        await run(stand, "salted", image=True, cache_salt="s")
        await engine.publish()
        await stand.until(lambda: stand.agent.life.slots[0].translator.unaddressed["ambiguous_keys"] > 0)
        assert stand.device() == before


FACE_PAD = 1_000_000 + FACE % 2**30


async def test_sglang_with_another_layout_is_a_mismatch(
    layouter: Layouter, beside: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes_by_events, "EVENT_SECONDS", 0.5)
    engine = SglangServer(layouter)
    engine.shift = 1
    async with beside(engine, "sglang") as stand:
        contract = stand.registrations[0].contract
        assert not contract.text.proven
        assert not contract.image.proven
        assert "predicted addresses" in contract.text.detail


async def test_trtllm_is_proven_by_what_it_tells_when_asked(layouter: Layouter, beside: Callable[..., Any]) -> None:
    async with beside(TrtllmServer(layouter), "trtllm") as stand:
        (worker,) = stand.registrations
        assert (worker.engine, worker.block_size, worker.limits.num_blocks) == ("trtllm", 32, 512)
        assert worker.contract.text.proven, worker.contract.text.detail
        assert worker.contract.image.proven, worker.contract.image.detail
        assert not worker.contract.video.proven
        assert stand.heartbeats[-1].load.kv_usage == 0.25
        await run(stand, "r1", image=True)
        await stand.until(lambda: due(layouter, 32, image=True) <= stand.resident())
        assert stand.kv_events[-1].complete


async def test_trtllm_events_that_overflowed_leave_nothing_claimed(
    layouter: Layouter, beside: Callable[..., Any]
) -> None:
    engine = TrtllmServer(layouter)
    async with beside(engine, "trtllm") as stand:
        await run(stand, "r1", image=False)
        await stand.until(lambda: due(layouter, 32, image=False) <= stand.resident())
        engine.next_id += 5
        engine.cached.clear()
        await run(stand, "r2", image=True)
        await stand.until(lambda: stand.resident() == due(layouter, 32, image=True))
        assert not stand.kv_events[-1].complete


async def test_a_trtllm_that_restarted_begins_a_new_epoch(layouter: Layouter, beside: Callable[..., Any]) -> None:
    engine = TrtllmServer(layouter)
    async with beside(engine, "trtllm") as stand:
        engine.next_id = 0
        engine.cached.clear()
        engine.happened({"type": "created"})
        await stand.until(lambda: len(stand.registrations) == 2)
