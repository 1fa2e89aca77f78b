"""Running work: what the engine is asked, what is answered, and which facts are stated."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from aiohttp import web

from schemas.lifecycle import LifecycleEvent as Event
from schemas.lifecycle import Usage
from schemas.media import MediaKind
from schemas.work import WorkMedia
from services.kv.identity import engine_uuid
from services.runtime.blobs import Blobs
from services.runtime.errors import BadRecord, Transient
from services.runtime.topics import LIFECYCLE
from tests.unit.worker.conftest import REPLIES, Stand, kinds
from tests.unit.worker.fake_engine import answer_plainly, refusal, streaming

USAGE = Usage(prompt_tokens=10, completion_tokens=2, cached_tokens=4)


@pytest.fixture
async def stand(stand: Stand) -> Stand:
    return await stand.start()


async def test_a_plain_answer_is_one_final_piece_and_two_facts(stand: Stand) -> None:
    await stand.give(stand.work())
    await stand.ended()
    (reply,) = stand.replies
    assert (reply.index, reply.final, reply.error, reply.attempt, reply.worker_id) == (0, True, None, 1, "w1")
    assert orjson.loads(reply.chunk)["choices"][0]["message"]["content"] == "hello"
    assert kinds(stand) == [Event.FIRST_TOKEN, Event.FINISHED]
    assert stand.facts[1].usage == USAGE
    assert stand.facts[1].stage == "agent"


async def test_the_engine_gets_the_clients_body_with_what_is_ours(stand: Stand) -> None:
    await stand.give(
        stand.work(
            tenant="t", attempt=2, session_id="s1", cache_salt="salt", lora="adapter",
            body='{"model":"m","messages":[],"top_k":5,"vllm_xargs":{"kv_cache_report_mode":"full"}}',
        )
    )  # fmt: skip
    await stand.ended()
    body, headers = stand.engine.chats[0]
    assert body == {"model": "adapter", "messages": [], "top_k": 5, "cache_salt": "salt"}
    assert headers["X-Request-Id"] == "t/r1-2"
    assert headers["X-Session-ID"] == "t/s1"
    assert "X-data-parallel-rank" not in headers


async def test_media_travel_with_their_identity_and_claimed_bytes(stand: Stand) -> None:
    claim = await Blobs.of(stand.harness.settings).put(b"\x89PNG", "image/png")
    content = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "https://h/a.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://h/b.png"}},
    ]
    media = [
        WorkMedia(kind=MediaKind.IMAGE, message=0, part=1, identity=7, claim=claim),
        WorkMedia(kind=MediaKind.IMAGE, message=0, part=2),
    ]
    body = orjson.dumps({"messages": [{"role": "user", "content": content}]}).decode()
    await stand.give(stand.work(body=body, media=media))
    await stand.ended()
    parts = stand.engine.chats[0][0]["messages"][0]["content"]
    assert parts[1]["uuid"] == engine_uuid(7)
    assert parts[1]["image_url"] == {"url": "data:image/png;base64,iVBORw==", "detail": "low"}
    assert parts[2] == content[2]


async def test_a_body_may_be_claimed_and_large(stand: Stand) -> None:
    body = orjson.dumps({"messages": [{"role": "user", "content": "x" * 300_000}]})
    claim = await Blobs.of(stand.harness.settings).put(body, "application/json")
    await stand.give(stand.work(body=None, body_claim=claim))
    await stand.ended()
    assert len(stand.engine.chats[0][0]["messages"][0]["content"]) == 300_000


async def test_bytes_that_are_gone_end_the_request_with_an_error(stand: Stand) -> None:
    claim = await Blobs.of(stand.harness.settings).put(b"x", "")
    gone = claim.model_copy(update={"uri": "blob:" + "0" * 32})
    await stand.give(stand.work(body=None, body_claim=gone))
    await stand.ended()
    (reply,) = stand.replies
    assert reply.error is not None
    assert (reply.final, reply.error.status, reply.error.code) == (True, 502, "blob_gone")
    assert kinds(stand) == [Event.FAILED]
    assert not stand.facts[0].retryable


class TestStreams:
    async def test_pieces_come_in_index_order_whole_and_end_with_done(self, stand: Stand) -> None:
        stand.engine.chat = streaming(*[f"token {number} " * 20 for number in range(30)])
        await stand.give(stand.work(stream=True))
        await stand.ended()
        assert [reply.index for reply in stand.replies] == list(range(len(stand.replies)))
        assert [reply.final for reply in stand.replies] == [False] * (len(stand.replies) - 1) + [True]
        text = "".join(reply.chunk for reply in stand.replies)
        events = text.removesuffix("\n\n").split("\n\n")
        assert len(events) == 31
        assert events[-1] == "data: [DONE]"
        assert '"token 29 ' in events[-2]
        assert all(reply.chunk.endswith("\n\n") for reply in stand.replies)
        assert kinds(stand) == [Event.FIRST_TOKEN, Event.FINISHED]
        assert stand.facts[1].usage == USAGE

    async def test_small_events_are_coalesced(self, stand: Stand) -> None:
        stand.engine.chat = streaming(*"abcdefghijklmnopqrstuvwxyz")
        await stand.give(stand.work(stream=True))
        await stand.ended()
        assert 2 <= len(stand.replies) < 13

    @pytest.mark.parametrize("asked", [True, False])
    async def test_usage_is_always_asked_for_and_told_only_to_who_asked(self, stand: Stand, asked: bool) -> None:
        stand.engine.chat = streaming("a")
        body = orjson.dumps({"messages": [], "stream": True, "stream_options": {"include_usage": asked}}).decode()
        await stand.give(stand.work(stream=True, body=body))
        await stand.ended()
        assert stand.engine.chats[0][0]["stream_options"] == {"include_usage": True}
        assert ("prompt_tokens" in "".join(reply.chunk for reply in stand.replies)) == asked
        assert stand.facts[-1].usage == USAGE

    async def test_the_first_token_is_a_fact_while_the_stream_goes_on(self, stand: Stand) -> None:
        hold = asyncio.Event()
        stand.engine.chat = streaming("a", hold=hold)
        await stand.give(stand.work(stream=True))
        await stand.until(lambda: kinds(stand) == [Event.FIRST_TOKEN] and stand.replies)
        hold.set()
        await stand.ended()
        assert kinds(stand) == [Event.FIRST_TOKEN, Event.FINISHED]

    @pytest.mark.parametrize("end", ["cut", "error"])
    async def test_after_output_a_break_is_the_end(self, stand: Stand, end: str) -> None:
        stand.engine.chat = streaming("a", "b", end=end)
        await stand.give(stand.work(stream=True))
        await stand.ended()
        last = stand.replies[-1]
        assert last.final
        assert last.error is not None
        assert last.error.status == (502 if end == "cut" else 500)
        assert kinds(stand) == [Event.FIRST_TOKEN, Event.FAILED]
        assert (stand.facts[1].retryable, stand.facts[1].before_output) == (False, False)

    @pytest.mark.parametrize("end", ["cut", "error"])
    async def test_before_output_a_break_is_for_another_worker(self, stand: Stand, end: str) -> None:
        stand.engine.chat = streaming(end=end)
        await stand.give(stand.work(stream=True))
        await stand.ended()
        assert stand.replies == []
        assert kinds(stand) == [Event.FAILED]
        assert (stand.facts[0].retryable, stand.facts[0].before_output) == (True, True)
        assert len(stand.engine.chats) == 1


class TestErrors:
    async def test_the_requests_own_fault_is_answered_without_secrets(self, stand: Stand) -> None:
        async def refuse(request: web.Request, body: Any) -> web.Response:
            return refusal(400, "can't fetch https://h/a.png?sig=secret and data:image/png;base64,AAAA")

        stand.engine.chat = refuse
        await stand.give(stand.work())
        await stand.ended()
        (reply,) = stand.replies
        assert reply.error is not None
        assert (reply.final, reply.error.status, reply.error.code) == (True, 400, "engine_400")
        assert "secret" not in reply.error.message
        assert "AAAA" not in reply.error.message
        assert (kinds(stand), stand.facts[0].status, stand.facts[0].retryable) == ([Event.FAILED], 400, False)

    async def test_what_no_engine_can_do_is_tried_nowhere_else(self, stand: Stand) -> None:
        """vLLM's 501 for a data: URI that is no base64 speaks of the request, not of the engine."""

        async def refuse(request: web.Request, body: Any) -> web.Response:
            return refusal(501, "Only base64 data URLs are supported for now.")

        stand.engine.chat = refuse
        await stand.give(stand.work())
        await stand.ended()
        error = stand.replies[0].error
        assert error is not None
        assert (error.status, error.code, stand.facts[0].retryable) == (501, "engine_501", False)

    @pytest.mark.parametrize("status", [500, 503, 429])
    async def test_the_engines_trouble_is_for_another_worker(self, stand: Stand, status: int) -> None:
        async def refuse(request: web.Request, body: Any) -> web.Response:
            return refusal(status, "overloaded")

        stand.engine.chat = refuse
        await stand.give(stand.work())
        await stand.ended()
        assert stand.replies == []
        assert (stand.facts[0].status, stand.facts[0].retryable) == (status, True)
        assert len(stand.engine.chats) == 1

    async def test_an_engine_that_does_not_listen_is_for_another_worker(self, stand: Stand) -> None:
        await stand.engine.stop_listening()
        await stand.give(stand.work())
        await stand.ended()
        assert stand.replies == []
        assert (stand.facts[0].code, stand.facts[0].retryable) == ("engine_unreachable", True)

    async def test_a_uuid_the_engine_forgot_is_sent_once_more_with_its_data(self, stand: Stand) -> None:
        async def forgetful(request: web.Request, body: Any) -> web.StreamResponse:
            if len(stand.engine.chats) == 1:
                return refusal(400, "Cache miss for image at index 0 but data is not provided.")
            return await answer_plainly(request, body)

        stand.engine.chat = forgetful
        await stand.give(stand.work())
        await stand.ended()
        assert kinds(stand) == [Event.FIRST_TOKEN, Event.FINISHED]
        assert len(stand.engine.chats) == 2

    async def test_an_answer_that_is_none_is_for_another_worker(self, stand: Stand) -> None:
        async def odd(request: web.Request, body: Any) -> web.Response:
            return web.Response(text="<html>")

        stand.engine.chat = odd
        await stand.give(stand.work())
        await stand.ended()
        assert (stand.facts[0].code, stand.facts[0].retryable) == ("engine_answer_invalid", True)

    async def test_an_answer_too_large_for_a_record_is_said_so(self, stand: Stand) -> None:
        stand.harness.sender.fail_next(BadRecord("record_too_large", "1 MiB"), topic=REPLIES)
        await stand.give(stand.work())
        await stand.ended()
        (reply,) = stand.replies
        assert reply.error is not None
        assert (reply.index, reply.final, reply.error.code) == (0, True, "answer_too_large")

    async def test_a_reply_topic_that_does_not_exist_costs_the_answer_only(self, stand: Stand) -> None:
        stand.harness.sender.fail_next(BadRecord("unknown_topic", "no topic"), topic=REPLIES)
        stand.engine.chat = streaming(*"abc")
        await stand.give(stand.work(stream=True))
        await stand.ended()
        assert stand.replies == []
        assert kinds(stand) == [Event.FIRST_TOKEN, Event.FINISHED]

    async def test_facts_wait_for_a_broker_that_is_away(self, stand: Stand) -> None:
        stand.harness.sender.fail_next(Transient("away"), topic=LIFECYCLE.name, times=2)
        await stand.give(stand.work())
        await stand.ended()
        assert kinds(stand) == [Event.FIRST_TOKEN, Event.FINISHED]

    @pytest.mark.parametrize("body", ["[]", "no json", '{"messages":[]}'])
    async def test_a_body_that_does_not_fit_its_work_is_an_error_not_a_loop(self, stand: Stand, body: str) -> None:
        media = [WorkMedia(kind=MediaKind.IMAGE, message=0, part=0, identity=1)]
        await stand.give(stand.work(body=body, media=media))
        await stand.ended()
        (reply,) = stand.replies
        assert reply.error is not None
        assert reply.error.code == "invalid_body"
        assert stand.engine.chats == []


class TestBounds:
    @pytest.fixture
    def settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        return settings | {"worker_max_concurrency": 2}

    async def test_no_more_at_once_than_the_engine_was_given(self, stand: Stand) -> None:
        hold = asyncio.Event()
        stand.engine.chat = streaming("a", hold=hold)
        works = [stand.work(f"r{number}", stream=True) for number in range(4)]
        waiting = [asyncio.ensure_future(stand.give(work)) for work in works]
        await stand.until(lambda: len(stand.engine.chats) == 2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(stand.engine.chats) == 2
        hold.set()
        await asyncio.gather(*waiting)
        await stand.ended()
        assert sum(fact.event is Event.FINISHED for fact in stand.facts) == 4


async def test_without_a_reply_to_there_are_only_facts(stand: Stand) -> None:
    stand.engine.chat = streaming("a", "b")
    await stand.give(stand.work(stream=True, reply_to=None))
    await stand.ended()
    assert stand.replies == []
    assert kinds(stand) == [Event.FIRST_TOKEN, Event.FINISHED]
