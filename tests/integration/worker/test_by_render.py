"""Chats with media by way of a rendering: the same answers, the engine processes nothing, events carry our names."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from PIL import Image

from schemas.lifecycle import LifecycleEvent
from schemas.media import MediaKind
from services.engine_sim.config import SimConfig
from services.engine_sim.server import SimEngine
from services.kv.address import Span, addresses
from services.kv.identity import engine_uuid
from services.layout.layouter import Layouter
from services.layout.render.client import RENDER_PATH
from services.layout.shapes import MediaShape
from services.runtime.host_memory import HostMemory
from services.runtime.settings import Settings
from services.worker.by_render import ByRender
from services.worker.engine import Engine
from services.worker.engine_body import EngineRequest
from services.worker.forward import Outcome, forward
from tests.integration.worker.conftest import MODEL, StartFleet

IDENTITY = 0xABCDEF
WORDS = "one two three four five six seven eight nine ten " * 4


def uri(height: int = 80, width: int = 112) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (1, 2, 3)).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def body(**more: Any) -> dict[str, Any]:
    content = [
        {"type": "image_url", "image_url": {"url": uri()}, "uuid": engine_uuid(IDENTITY)},
        {"type": "text", "text": WORDS},
    ]  # fmt: skip
    return {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 6, **more}


class Heard:
    def __init__(self) -> None:
        self.text = ""
        self.began = 0

    async def first_token(self) -> None:
        self.began += 1

    async def output(self, text: str) -> None:
        self.text += text


class Stand:
    def __init__(self, sim: SimEngine, renders: SimEngine, engine: Engine) -> None:
        self.sim, self.renders, self.engine = sim, renders, engine
        self.by_render = ByRender(engine, renders.http_url, seconds=5, now=lambda: 7)

    async def ask(self, asked: dict[str, Any], *, usual: bool = False) -> tuple[Outcome, str]:
        stream = bool(asked.get("stream"))
        request = EngineRequest(orjson.dumps(asked), {"X-Request-Id": "r1"}, stream, True)
        heard = Heard()
        outcome = await forward(self.engine if usual else self.by_render, request, heard)
        return outcome, heard.text + outcome.text


@pytest.fixture
async def engines(layouter: Layouter) -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def stand(stack: AsyncExitStack, layouter: Layouter, **options: Any) -> Stand:
    config = SimConfig(MODEL, served_name="m", speedup=1000.0)
    sim = await stack.enter_async_context(SimEngine(replace(config, **options), layouter=layouter))
    renders = await stack.enter_async_context(SimEngine(config, layouter=layouter))
    return Stand(sim, renders, await stack.enter_async_context(Engine(sim.http_url)))


def said(text: str) -> tuple[str, list[Any]]:
    """The words of an answer, whole or streamed, and its finish reasons."""
    events = [orjson.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    chunks = events or [orjson.loads(text)]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    parts = [choice.get("message") or choice["delta"] for choice in choices]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return "".join(part.get("content") or "" for part in parts), reasons


@pytest.mark.parametrize("stream", [False, True])
async def test_the_answer_is_the_chats(engines: AsyncExitStack, layouter: Layouter, stream: bool) -> None:
    made = await stand(engines, layouter)
    asked = body(stream=True, stream_options={"include_usage": True}) if stream else body()
    usual, usual_text = await made.ask(asked, usual=True)
    outcome, text = await made.ask(asked)
    assert made.by_render.generated == 1
    assert said(text) == said(usual_text)
    assert outcome.error is usual.error is None
    assert outcome.usage is not None
    assert usual.usage is not None
    assert (outcome.usage.prompt_tokens, outcome.usage.completion_tokens) == (
        usual.usage.prompt_tokens, usual.usage.completion_tokens,
    )  # fmt: skip
    assert outcome.usage.cached_tokens


async def test_the_engine_that_generates_never_loads_the_medium(engines: AsyncExitStack, layouter: Layouter) -> None:
    """What it knows of it came with the rendering, which has no size."""
    made = await stand(engines, layouter)
    await made.ask(body())
    assert made.sim.backend.executed == {"r1": 1}
    assert made.renders.backend.executed == {}
    assert made.sim.backend.expander.processor_cache.get(engine_uuid(IDENTITY)) == MediaShape(MediaKind.IMAGE)


async def test_text_and_other_chats_go_the_usual_way(engines: AsyncExitStack, layouter: Layouter) -> None:
    made = await stand(engines, layouter)
    for asked in (body(return_token_ids=True), {"model": "m", "messages": [{"role": "user", "content": "a"}]}):
        outcome, _ = await made.ask({**asked, "max_tokens": 2})
        assert outcome.error is None
    assert made.by_render.generated == 0


async def test_all_go_the_usual_way_where_the_engine_renames_media_there(
    engines: AsyncExitStack, layouter: Layouter
) -> None:
    made = await stand(engines, layouter)
    made.by_render = ByRender(made.engine, made.renders.http_url, seconds=5, renames=lambda: True)
    outcome, _ = await made.ask(body())
    assert (outcome.error, made.by_render.generated) == (None, 0)


@pytest.mark.parametrize("scale_out", [False, True])
async def test_an_engine_that_does_not_offer_it_is_asked_once(
    engines: AsyncExitStack, layouter: Layouter, scale_out: bool
) -> None:
    made = await stand(engines, layouter, scale_out=scale_out)
    if scale_out:
        await made.renders.stop()
    for _ in range(2):
        outcome, _ = await made.ask(body())
        assert outcome.error is None
    assert made.by_render.generated == 0
    # A server that is away may come back; an endpoint that is missing won't.
    assert made.by_render._offered == scale_out


async def test_a_refusal_is_the_engines(engines: AsyncExitStack, layouter: Layouter) -> None:
    made = await stand(engines, layouter, max_model_len=40)
    outcome, _ = await made.ask(body())
    assert outcome.error is not None
    assert outcome.error.status == 400
    assert "maximum context length" in outcome.error.message


async def test_a_rendering_that_the_layout_stage_left_is_taken(
    engines: AsyncExitStack, layouter: Layouter, tmp_path: Path
) -> None:
    made = await stand(engines, layouter)
    memory = HostMemory(tmp_path / "memory", most_bytes=1 << 20, seconds=30)
    made.by_render = ByRender(made.engine, "http://127.0.0.1:9", seconds=5, memory=memory)
    async with made.engine.post(f"{made.renders.http_url}{RENDER_PATH}", orjson.dumps(body()), {}) as response:
        memory.put("r1", await response.read())
    request = EngineRequest(orjson.dumps(body()), {"X-Request-Id": "r1-2"}, False, True)
    for taken in (1, 1):
        outcome = await forward(made.by_render, request, Heard())
        assert outcome.error is None
        assert (made.by_render.taken, made.by_render.generated) == (taken, 1)
    assert orjson.loads(outcome.text)["id"] == "chatcmpl-r1-2"


class TestBesideAnEngine:
    """The whole agent, and what it announces."""

    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return settings.model_copy(update={"worker_render_generate": True})

    async def test_events_carry_our_identity(self, fleet: StartFleet, layouter: Layouter) -> None:
        made = await fleet()
        asked = body()
        del asked["messages"][0]["content"][0]["uuid"]
        media = [{"kind": "image", "message": 0, "part": 0, "identity": f"{IDENTITY:016x}"}]
        await made.give("r1", body=orjson.dumps(asked).decode(), media=media)
        assert (await made.ended("r1"))["r1"].event is LifecycleEvent.FINISHED
        by_render = made.agent._executor.tools.engine
        assert isinstance(by_render, ByRender)
        assert by_render.generated == 1
        view = layouter.view(asked, [MediaShape(MediaKind.IMAGE, 80, 112)])
        spans = [Span(span.offset, span.length, IDENTITY) for span in view.spans]
        expected = set(addresses(view.token_ids, 16, spans))
        held: set[int] = set()
        while not held.issuperset(expected):
            held = await made.resident()
