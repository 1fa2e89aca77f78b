"""An engine's outside, scripted by the test: HTTP answers, KV events over ZMQ with replay, a kill and a new life."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio
from aiohttp import web

Chat = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
END = (-1).to_bytes(8, "big", signed=True)
MODEL = "m"
BLOCK_SIZE = 4


def usage(prompt: int = 10, completion: int = 2, cached: int = 4) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt, "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }  # fmt: skip


def stored(hashes: list[int], tokens: list[int], parent: int | None = None, keys: Any = None) -> dict[str, Any]:
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens,
        "block_size": BLOCK_SIZE, "lora_id": None, "medium": "GPU", "extra_keys": keys or [None] * len(hashes),
    }  # fmt: skip


class FakeEngine:
    """A server on a free port. ``topic_frames`` False speaks replay as up to 0.24."""

    def __init__(self, *, events: bool = True, topic_frames: bool = True) -> None:
        self.events = events
        self.topic_frames = topic_frames
        self.version = "0.32.0"
        self.tokens: Callable[[dict[str, Any]], list[int]] = lambda body: [1, 2, 3]
        self.chat: Chat = answer_plainly
        self.chats: list[tuple[dict[str, Any], Mapping[str, str]]] = []
        self.ended: list[str] = []
        """X-Request-Id of chats whose connection was closed before their end."""
        self.replays: list[int] = []
        self.health_status = 200
        self.running = 3
        self.started_at: float | None = None
        """What /metrics says of the process, if anything."""
        self.port = 0
        self._buffer: list[tuple[int, bytes]] = []
        self._seq = 0
        self._context: Any = None
        self._runner: web.AppRunner | None = None
        self._replaying: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context.instance()
        self._pub = self._context.socket(zmq.PUB)
        self.events_port = self._pub.bind_to_random_port("tcp://127.0.0.1")
        self._router = self._context.socket(zmq.ROUTER)
        self.replay_port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self._replaying = asyncio.create_task(self._answer_replays())
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_listening()
        assert self._replaying is not None
        self._replaying.cancel()
        await asyncio.gather(self._replaying, return_exceptions=True)
        self._pub.close(0)
        self._router.close(0)

    async def listen(self) -> None:
        """Begin to listen, on the same port as before."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._chat)
        self.add_routes(app)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self.port or self._runner.addresses[0][1]

    def add_routes(self, app: web.Application) -> None:
        """What only this kind of engine has."""
        app.router.add_get("/version", self._version)
        app.router.add_get("/kv_event_sources", self._sources)
        app.router.add_post("/tokenize", self._tokenize)

    async def stop_listening(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def new_life(self) -> None:
        """Begin anew, as a new process does: seq 0, empty buffer."""
        self._buffer.clear()
        self._seq = 0

    def forget(self, before: int) -> None:
        """Let the replay buffer lose what is before a seq."""
        self._buffer = [(seq, payload) for seq, payload in self._buffer if seq >= before]

    async def publish(self, *events: Any, lose: bool = False) -> int:
        """Publish a batch (``lose``: it gets lost on its way) and return its seq."""
        return await self.publish_raw(msgspec.msgpack.encode([time.time(), list(events), 0]), lose=lose)

    async def publish_raw(self, payload: bytes, *, lose: bool = False) -> int:
        seq, self._seq = self._seq, self._seq + 1
        self._buffer.append((seq, payload))
        if not lose:
            await self._pub.send_multipart([b"", seq.to_bytes(8, "big"), payload])
        return seq

    async def again(self, seq: int) -> None:
        """Send a batch a second time."""
        payload = dict(self._buffer)[seq]
        await self._pub.send_multipart([b"", seq.to_bytes(8, "big"), payload])

    async def _answer_replays(self) -> None:
        topic = [b""] if self.topic_frames else []
        while True:
            client, _, start = await self._router.recv_multipart()
            self.replays.append(int.from_bytes(start, "big"))
            for seq, payload in list(self._buffer):
                if seq >= self.replays[-1]:
                    await self._router.send_multipart([client, b"", *topic, seq.to_bytes(8, "big"), payload])
            await self._router.send_multipart([client, b"", *topic, END, b""])

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=self.health_status)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"data": [{"id": MODEL, "parent": None, "max_model_len": 8192}, {"id": "adapter", "parent": MODEL}]}
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        started = "" if self.started_at is None else f"process_start_time_seconds {self.started_at}\n"
        return web.Response(
            text=started + f'# HELP x\nvllm:num_requests_running{{engine="0",model_name="m"}} {self.running}.0\n'
            'vllm:num_requests_waiting{engine="0",model_name="m"} 1.0\n'
            'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
            f'vllm:cache_config_info{{block_size="{BLOCK_SIZE}",engine="0",num_gpu_blocks="512"}} 1.0\n'
        )

    async def _sources(self, request: web.Request) -> web.Response:
        if not self.events:
            return web.json_response({"0": {"enable_kv_cache_events": False, "publisher": "null"}})
        return web.json_response(
            {"0": {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{self.events_port}",
                   "replay_endpoint": f"tcp://*:{self.replay_port}", "topic": ""}}
        )  # fmt: skip

    async def _tokenize(self, request: web.Request) -> web.Response:
        try:
            return web.json_response({"tokens": self.tokens(await request.json())})
        except ValueError as error:
            return refusal(400, str(error))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.chats.append((body, request.headers))
        try:
            return await self.chat(request, body)
        except asyncio.CancelledError:
            self.ended.append(request.headers.get("X-Request-Id", ""))
            raise


def refusal(status: int, message: str) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}, status=status
    )


async def answer_plainly(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"id": "chatcmpl-1", "choices": [{"message": {"content": "hello"}}], "usage": usage()})


def streaming(*texts: str, end: str = "done", hold: asyncio.Event | None = None) -> Chat:
    """Stream these texts, then end: ``done`` with usage and [DONE], ``cut`` without, ``error`` with an error event."""

    async def chat(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for text in texts:
            await response.write(event({"choices": [{"delta": {"content": text}}]}))
        if hold is not None:
            await hold.wait()
        if end == "error":
            await response.write(event({"error": {"message": "it broke", "code": 500}}))
        elif end == "done":
            if body.get("stream_options", {}).get("include_usage"):
                await response.write(event({"choices": [], "usage": usage()}))
            await response.write(b"data: [DONE]\n\n")
        else:
            assert request.transport is not None
            request.transport.abort()
        return response

    return chat


def event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()
