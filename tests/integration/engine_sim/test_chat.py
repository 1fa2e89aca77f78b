"""Chat completions: answers, streams, limits, errors, and clients that go away."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from services.engine_sim.timing import Timing
from tests.integration.engine_sim.conftest import Client, StartEngine

LONG = "The quick brown fox jumps over the lazy dog. " * 20
STUCK = Timing(decode_step_seconds=3600.0)
"""An engine that gives one token and then computes for an hour."""

ENDLESS = Timing(decode_step_seconds=0.001)
"""An engine that takes a minute for a long answer, in short steps."""


async def stream(client: Client, **more: Any) -> list[dict[str, Any]]:
    """The chunks of a streamed answer."""
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20, "stream": True, **more}
    async with client.session.post(f"{client.engine.http_url}/v1/chat/completions", json=body) as response:
        assert response.content_type == "text/event-stream"
        events = (await response.text()).removesuffix("\n\n").split("\n\n")
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


async def until(client: Client, line: str) -> None:
    """Wait until ``/metrics`` says so (the test's own time limit ends a wait in vain)."""
    while line not in (await client.get("/metrics")).body:  # noqa: ASYNC110 - another process has no event to wait for
        await asyncio.sleep(0.01)


async def test_usage_tells_what_was_cached(client: Client) -> None:
    first, second = await client.chat(LONG), await client.chat(LONG)
    tokens = first.body["usage"]["prompt_tokens"]
    usable = (tokens - 1) // 16 * 16
    assert first.body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second.body["usage"]["prompt_tokens_details"]["cached_tokens"] == usable
    assert (await client.get("/metrics")).body.count(f'prefix_cache_hits_total{{engine="0",model_name="m"}} {usable}.0')


@pytest.mark.parametrize("other", [{"cache_salt": "s"}, {"model": "adapter"}])
async def test_salt_and_adapter_share_no_cache(start: StartEngine, other: dict[str, str]) -> None:
    client = await start(loras=("adapter",))
    await client.chat(LONG)
    for cached in (False, True):
        answer = await client.chat(LONG, **other)
        assert bool(answer.body["usage"]["prompt_tokens_details"]["cached_tokens"]) is cached
        assert answer.body["model"] == other.get("model", "m")


async def test_max_tokens_gives_exactly_so_many_and_without_it_the_model_stops(start: StartEngine) -> None:
    client = await start(output_tokens=5)
    for asked, given, reason in ((12, 12, "length"), (None, 5, "stop")):
        answer = await client.chat(max_tokens=asked)
        assert answer.body["usage"]["completion_tokens"] == given
        assert answer.body["choices"][0]["finish_reason"] == reason


async def test_the_text_is_made_of_the_token_ids(client: Client) -> None:
    answer = await client.chat(max_tokens=30, return_token_ids=True)
    choice = answer.body["choices"][0]
    assert len(choice["token_ids"]) == 30
    assert client.engine.backend.tokenizer.decode(choice["token_ids"]) == choice["message"]["content"]
    assert choice["message"]["content"].split()[0] == "token"


async def test_a_stream_says_the_same_in_pieces(client: Client) -> None:
    plain = (await client.chat(max_tokens=20, return_token_ids=True)).body
    first, *middle, last = await stream(client, return_token_ids=True)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["prompt_token_ids"] == plain["prompt_token_ids"]
    choices = [chunk["choices"][0] for chunk in [*middle, last]]
    assert "".join(choice["delta"]["content"] for choice in choices) == plain["choices"][0]["message"]["content"]
    assert [token for choice in choices for token in choice["token_ids"]] == plain["choices"][0]["token_ids"]
    assert [choice["finish_reason"] for choice in choices] == [None] * len(middle) + ["length"]
    assert {chunk["object"] for chunk in (first, *middle, last)} == {"chat.completion.chunk"}


async def test_usage_closes_a_stream_for_who_asks(client: Client) -> None:
    assert "usage" not in (await stream(client))[-1]
    usage = (await stream(client, stream_options={"include_usage": True}))[-1]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 20
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 16


async def test_request_ids_are_counted_each_time_they_run(client: Client) -> None:
    answer = await client.chat(X_Request_Id="r/1")
    assert answer.body["id"] == "chatcmpl-r/1"
    await client.chat(X_Request_Id="r/1")
    await client.chat(X_Request_Id="r/2")
    await client.chat([{"type": "image_url", "uuid": "unknown"}], X_Request_Id="refused")
    assert (await client.get("/sim/requests")).body == {"requests": {"r/1": 2, "r/2": 1}, "total": 3}
    assert client.engine.executed == {"r/1": 2, "r/2": 1}


async def test_a_client_that_goes_away_frees_its_blocks(start: StartEngine) -> None:
    client = await start(speedup=1.0, timing=ENDLESS)
    asking = asyncio.ensure_future(client.chat(LONG, max_tokens=30_000))
    await until(client, 'num_requests_running{engine="0",model_name="m"} 1.0')
    asking.cancel()
    await until(client, 'num_requests_running{engine="0",model_name="m"} 0.0')
    assert 'kv_cache_usage_perc{engine="0",model_name="m"} 0.0' in (await client.get("/metrics")).body


async def test_a_stream_that_is_closed_is_aborted(start: StartEngine) -> None:
    client = await start(speedup=1.0, timing=ENDLESS)
    body = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 30_000, "stream": True}
    async with client.session.post(f"{client.engine.http_url}/v1/chat/completions", json=body) as response:
        await response.content.readany()
        await until(client, 'num_requests_running{engine="0",model_name="m"} 1.0')
        response.close()
    await until(client, 'num_requests_running{engine="0",model_name="m"} 0.0')
    assert 'kv_cache_usage_perc{engine="0",model_name="m"} 0.0' in (await client.get("/metrics")).body
    assert (await client.post("/reset_prefix_cache", None)).body == {"success": True}


async def test_requests_over_the_limit_wait_and_held_blocks_are_not_reset(start: StartEngine) -> None:
    client = await start(speedup=1.0, timing=STUCK, max_num_seqs=1)
    held = [asyncio.ensure_future(client.chat(LONG, max_tokens=9)) for _ in range(3)]
    await until(client, 'num_requests_waiting{engine="0",model_name="m"} 2.0')
    assert 'num_requests_running{engine="0",model_name="m"} 1.0' in (await client.get("/metrics")).body
    assert (await client.post("/reset_prefix_cache", None)).body == {"success": False}
    for each in held:
        each.cancel()


async def test_what_the_engine_says_of_itself(client: Client) -> None:
    assert (await client.get("/health")).status == 200
    assert (await client.get("/version")).body == {"version": "0.32.0"}
    (model,) = (await client.get("/v1/models")).body["data"]
    assert (model["id"], model["max_model_len"]) == ("m", client.engine.backend.max_model_len)
    assert (await client.get("/nothing")).status == 404


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "JSON decode error"),
        (b"{", 400, "JSON decode error"),
        (b"null", 400, "the body is NoneType"),
        (b"[" * 10_000, 400, "JSON decode error"),
        (b'{"model": "other", "messages": []}', 404, "The model `other` does not exist"),
        (b'{"messages": []}', 400, "expected a list of messages"),
        (b'{"messages": {"role": "user"}}', 400, "messages is dict"),
        (b'{"messages": [3]}', 400, "messages holds a int"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "n": 3}', 400, "one choice"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_bad_bodies_get_an_error_and_the_next_request_is_served(
    client: Client, body: bytes, status: int, message: str
) -> None:
    async with client.session.post(f"{client.engine.http_url}/v1/chat/completions", data=body) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (status, status)
    assert message in answer["error"]["message"]
    assert (await client.chat()).status == 200


async def test_a_prompt_longer_than_the_window_is_refused(start: StartEngine) -> None:
    client = await start(max_model_len=100)
    answer = await client.chat(LONG)
    assert answer.status == 400
    assert "maximum context length is 100 tokens" in answer.message
