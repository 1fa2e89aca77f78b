"""Heartbeats tell what the engine's encoder surely holds: from the work that was sent to the end of the epoch."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from aiohttp import web

from schemas.media import MediaKind
from schemas.work import WorkMedia
from tests.unit.worker.conftest import Stand
from tests.unit.worker.fake_engine import refusal, stored, streaming, usage

IDENTITY = 7


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    return settings | {"worker_encoder_tokens": 100}


async def send(stand: Stand, request_id: str = "r1", **more: Any) -> None:
    """One image of 40 tokens that end at prompt token 50, to its answer."""
    part = {"type": "image_url", "image_url": {"url": "https://h/a.png"}}
    given: dict[str, Any] = {"kind": MediaKind.IMAGE, "message": 0, "part": 0}
    given |= {"identity": IDENTITY, "tokens": 40, "end": 50}
    medium = WorkMedia(**(given | more.pop("medium", {})))
    body = orjson.dumps({"messages": [{"role": "user", "content": [part]}]}).decode()
    await stand.give(stand.work(request_id, body=body, media=[medium], **more))
    await stand.ended()


async def told(stand: Stand) -> list[int]:
    await stand.agent.beat()
    return stand.heartbeats[-1].encoder


def answering(cached: int | None) -> Any:
    async def chat(request: web.Request, body: dict[str, Any]) -> web.Response:
        found = usage() if cached is None else usage(cached=cached)
        found["prompt_tokens_details"] = None if cached is None else found["prompt_tokens_details"]
        return web.json_response({"choices": [{"message": {"content": "x"}}], "usage": found})

    return chat


async def test_an_answered_mediums_output_is_told(stand: Stand) -> None:
    await stand.start()
    assert await told(stand) == []
    await send(stand)
    assert await told(stand) == [IDENTITY]


async def test_so_is_a_streams(stand: Stand) -> None:
    stand.engine.chat = streaming("a", "b")
    await stand.start()
    await send(stand, stream=True)
    assert await told(stand) == [IDENTITY]


@pytest.mark.parametrize(
    "more",
    [
        {"medium": {"identity": None}},
        {"medium": {"tokens": None, "end": None}},
        {"medium": {"tokens": 101}},
        {"lora": "adapter"},
        {"dp_rank": 1},
    ],
    ids=["nameless", "of unknown size", "larger than the cache", "under an adapter", "of a rank that is not there"],
)
async def test_what_is_not_sure_is_not_told(stand: Stand, more: dict[str, Any]) -> None:
    await stand.start()
    await send(stand, **more)
    assert await told(stand) == []


async def test_a_medium_whose_kv_was_found_was_not_encoded(stand: Stand) -> None:
    stand.engine.chat = answering(50)
    await stand.start()
    await send(stand)
    assert await told(stand) == []


async def test_an_engine_that_reports_no_cached_tokens_says_nothing(stand: Stand) -> None:
    stand.engine.chat = answering(None)
    await stand.start()
    await send(stand)
    assert await told(stand) == []


@pytest.mark.parametrize("end", ["cut", "error"])
async def test_nor_does_an_answer_that_failed(stand: Stand, end: str) -> None:
    stand.engine.chat = streaming("a", end=end)
    await stand.start()
    await send(stand, stream=True)
    assert await told(stand) == []


async def test_a_refused_one_may_have_pushed_others_out(stand: Stand) -> None:
    await stand.start()
    await send(stand)

    async def refusing(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return refusal(500, "no")

    stand.engine.chat = refusing
    await send(stand, "r2", medium={"identity": 8, "tokens": 61})
    assert await told(stand) == []


async def test_the_engines_reset_ends_it(stand: Stand) -> None:
    await stand.start()
    await send(stand)
    await stand.engine.publish({"type": "AllBlocksCleared"}, stored([9], [1, 2, 3, 4]))
    await stand.until(lambda: stand.device())
    assert await told(stand) == []


async def test_lost_events_end_it_too_for_a_reset_may_be_among_them(stand: Stand) -> None:
    await stand.start()
    await send(stand)
    await stand.engine.publish(stored([1], [1, 2, 3, 4]))
    await stand.until(lambda: stand.device())
    for number in range(3):
        await stand.engine.publish(stored([10 + number], [number] * 4), lose=True)
    stand.engine.forget(before=4)
    await stand.engine.publish(stored([2], [5, 6, 7, 8]))
    assert stand.agent.life is not None
    (slot,) = stand.agent.life.slots
    await stand.until(lambda: slot.holes)
    assert await told(stand) == []


async def test_another_life_of_the_engine_begins_with_nothing(stand: Stand) -> None:
    await stand.start()
    await send(stand)
    epoch = stand.heartbeats[-1].epoch
    await stand.engine.stop_listening()
    await stand.until(lambda: not stand.agent.registered)
    stand.engine.new_life()
    await stand.engine.listen()
    await stand.until(lambda: stand.agent.registered)
    assert await told(stand) == []
    assert stand.heartbeats[-1].epoch > epoch


class TestWithoutTheSetting:
    @pytest.fixture
    def settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        return settings | {"worker_encoder_tokens": 0}

    async def test_nothing_is_told(self, stand: Stand) -> None:
        await stand.start()
        await send(stand)
        assert await told(stand) == []
