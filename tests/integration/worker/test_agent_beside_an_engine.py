"""Agent, broker and a vLLM-compatible engine together: contracts, answers, and a set that is the engine's cache."""

from __future__ import annotations

import io
from typing import Any

import orjson
from PIL import Image

from schemas.lifecycle import LifecycleEvent
from schemas.media import MediaKind
from schemas.work import WorkMedia
from schemas.worker import WorkerState
from services.kv.address import Span, addresses
from services.layout.layouter import Layouter
from services.layout.shapes import MediaShape
from services.runtime.blobs import Blobs
from tests.integration.worker.conftest import StartFleet, until

LONG = "the quick brown fox jumps over the lazy dog " * 8


def body_of(content: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 1, **more}


def png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (9, 8, 7)).save(buffer, "PNG")
    return buffer.getvalue()


async def test_the_contract_is_proven_on_a_true_engine(fleet: StartFleet) -> None:
    running = await fleet()
    (worker,) = await running.registrations()
    contract = worker.contract
    assert contract is not None
    assert (contract.text.proven, contract.text.detail) == (True, None)
    assert (contract.image.proven, contract.image.verbatim_identity) == (True, True), contract.image.detail
    assert contract.image.variant == "qwen2_5_vl"
    assert (contract.video.proven, contract.video.verbatim_identity) == (True, True), contract.video.detail
    assert contract.video.sampling == "qwen2_vl/fps=2"
    beat = (await running.heartbeats())[-1]
    assert beat.healthy
    assert beat.snapshot is not None


async def test_what_the_router_would_compute_is_what_the_agent_publishes(
    fleet: StartFleet, layouter: Layouter
) -> None:
    running = await fleet()
    before = await running.resident()
    claim = await Blobs.of(running.settings).put(png(224, 168), "image/png")
    content = [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {"url": "https://h/a.png"}}]
    media = [WorkMedia(kind=MediaKind.IMAGE, message=0, part=1, identity=0xFACE, claim=claim)]
    body = orjson.dumps(body_of(content)).decode()
    await running.give("r1", body=body, media=media)
    await running.give("r2", body=body, media=media, cache_salt="s", stream=True)
    ends = await running.ended("r1", "r2")
    assert {end.event for end in ends.values()} == {LifecycleEvent.FINISHED}

    view = layouter.view(body_of(content), [MediaShape(MediaKind.IMAGE, 168, 224)])
    spans = [Span(span.offset, span.length, 0xFACE) for span in view.spans]
    expected = {
        *addresses(view.token_ids, 16, spans),
        *addresses(view.token_ids, 16, spans, cache_salt="s"),
    }
    held = await running.resident()
    assert held - before == expected

    await running.give("r3", body=body, media=media)
    end = (await running.ended("r3"))["r3"]
    assert end.usage is not None
    assert end.usage.cached_tokens == (len(view.token_ids) - 1) // 16 * 16


async def test_answers_come_back_plain_and_streamed(fleet: StartFleet) -> None:
    running = await fleet()
    await running.give("plain")
    await running.give("stream", stream=True)
    await running.ended("plain", "stream")
    (plain,) = await running.replies("plain")
    assert plain.final
    answer = orjson.loads(plain.chunk)
    streamed = await running.replies("stream")
    assert [reply.index for reply in streamed] == list(range(len(streamed)))
    assert streamed[-1].final
    assert "".join(reply.chunk for reply in streamed).endswith("data: [DONE]\n\n")
    assert answer["usage"]["completion_tokens"] == 4
    assert all(count == 1 for count in running.engine.executed.values())


async def test_under_eviction_the_set_stays_the_engines_cache(fleet: StartFleet) -> None:
    running = await fleet(num_blocks=64)
    names = [f"r{number}" for number in range(12)]
    for name in names:
        await running.give(name, f"{name} {LONG}")
        await running.ended(name)
    (core,) = running.engine.backend.cores
    findable = len(core.scheduler.cache.pool.cached_hashes)
    held = await running.resident()
    # All prompts share nothing and nothing runs: what the engine can still find is what we publish.
    assert 0 < len(held) == findable < 64
    await running.give("again", f"r11 {LONG}")
    end = (await running.ended("again"))["again"]
    assert end.usage is not None
    assert end.usage.cached_tokens
    await running.give("first", f"r0 {LONG}")
    first = (await running.ended("first"))["first"]
    assert first.usage is not None
    assert first.usage.cached_tokens is not None
    assert first.usage.cached_tokens < end.usage.cached_tokens


async def test_a_killed_engine_begins_a_new_epoch_and_its_work_goes_back(fleet: StartFleet) -> None:
    running = await fleet(speedup=1.0)
    await running.give("before", stream=True, body=orjson.dumps(body_of(LONG, max_tokens=4000)).decode())
    await until(lambda: running.agent._executor.running == 1)
    first = (await running.registrations())[0]
    await running.engine.stop()
    end = (await running.ended("before"))["before"]
    assert end.event is LifecycleEvent.FAILED
    await until(lambda: not running.agent.registered)
    await running.engine.start()
    await until(lambda: running.agent.registered)
    second = (await running.registrations())[-1]
    assert second.epoch > first.epoch
    assert second.contract == first.contract
    await running.give("stale", epoch=first.epoch)
    await running.give("after")
    ends = await running.ended("stale", "after")
    assert (ends["stale"].event, ends["stale"].retryable) == (LifecycleEvent.REFUSED, True)
    assert ends["after"].event is LifecycleEvent.FINISHED


async def test_a_second_agent_of_the_same_name_replaces_the_first(fleet: StartFleet) -> None:
    running = await fleet()
    await running.give("r1", LONG)
    await running.ended("r1")
    held = await running.resident()
    first = running.service
    await running.start_agent()
    await first.wait_failed()
    assert "was replaced by epoch" in str(first.failure)
    await first.stop()
    # The engine lives on: by replay the second agent knows all that the first one knew.
    assert await running.resident() >= held
    await running.give("r2", LONG)
    end = (await running.ended("r2"))["r2"]
    assert end.event is LifecycleEvent.FINISHED


async def test_stopping_says_so_first_and_finishes_what_runs(fleet: StartFleet) -> None:
    running = await fleet(speedup=20.0)
    await running.give("r1", stream=True, body=orjson.dumps(body_of(LONG, max_tokens=200)).decode())
    await until(lambda: running.agent._executor.running == 1)
    await running.service.stop()
    registrations = await running.registrations()
    assert [worker.state for worker in registrations] == [WorkerState.LIVE, WorkerState.DRAINING]
    assert (await running.ended("r1"))["r1"].event is LifecycleEvent.FINISHED
