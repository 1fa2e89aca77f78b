"""Simulated SGLang and TensorRT-LLM servers: a model's layout behind the wire forms of their documentation."""

from __future__ import annotations

import base64
import io
from typing import Any

from aiohttp import web
from PIL import Image

from schemas.media import MediaKind
from services.layout.layouter import Layouter
from services.layout.shapes import MediaShape
from services.layout.view import View
from services.worker.engines.pads import pad_of
from tests.unit.worker.fake_engine import FakeEngine, usage

Named = tuple[tuple[int, ...], str]
"""A prefix in its namespace (the salt)."""


class ForeignEngine(FakeEngine):
    """Runs chats: lays them out, caches whole pages, announces what is new. ``shift`` makes its layout wrong."""

    page = 1

    def __init__(self, layouter: Layouter) -> None:
        super().__init__()
        self.layouter = layouter
        self.shift = 0
        self.cached: dict[Named, int] = {}
        self.chat = self._run

    async def _run(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        view = self.layouter.view(body, shapes_of(body))
        tokens = [token + self.shift for token in view.token_ids]
        told = [part.get("uuid", "") for part in parts_of(body)]
        for span in view.spans:
            tokens[span.offset : span.offset + span.length] = self.media(told[span.item], span.length)
        hit, new = 0, []
        for end in range(self.page, len(tokens) + 1, self.page):
            prefix = (tuple(tokens[:end]), body.get("cache_salt", ""))
            if prefix in self.cached:
                hit = end
            else:
                self.cached[prefix] = self.name(prefix)
                new.append(prefix)
        if new:
            await self.announce(new, view, told)
        return web.json_response({"choices": [{"message": {"content": "x"}}], "usage": usage(len(tokens), 1, hit)})

    def parent(self, prefix: Named) -> int | None:
        """The engine's hash of the prefix one page shorter."""
        shorter = prefix[0][: -self.page]
        return self.cached[(shorter, prefix[1])] if shorter else None

    def name(self, prefix: Named) -> int:
        """The engine's hash."""
        return hash(prefix)

    def media(self, uuid: str, length: int) -> list[int]:
        """What stands in the place of a medium."""
        raise NotImplementedError

    async def announce(self, new: list[Named], view: View, told: list[str]) -> None:
        """Tell of new pages."""
        raise NotImplementedError


class SglangServer(ForeignEngine):
    """Pages of one token, vLLM's oldest arrays, pads, no media keys, no salt."""

    def __init__(self, layouter: Layouter, page: int = 1) -> None:
        super().__init__(layouter)
        self.page = page

    def add_routes(self, app: web.Application) -> None:
        """Its own way to tell what it is."""
        app.router.add_get("/get_server_info", self._info)

    async def _info(self, request: web.Request) -> web.Response:
        endpoint = f"tcp://*:{self.events_port}"
        config = (
            f'{{"publisher": "zmq", "endpoint": "{endpoint}", "replay_endpoint": "tcp://*:{self.replay_port}", '
            '"topic": ""}'
        )
        return web.json_response(
            {"version": "0.5.13", "page_size": self.page, "dp_size": 1, "kv_events_config": config}
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            text='sglang:num_running_reqs{model_name="m"} 2.0\nsglang:num_queue_reqs{model_name="m"} 1.0\n'
            'sglang:token_usage{model_name="m"} 0.5\n'
        )

    def media(self, uuid: str, length: int) -> list[int]:
        """Its pad, from the hash it was sent with."""
        assert len(uuid) == 16
        return [pad_of(int(uuid, 16))] * length

    async def announce(self, new: list[Named], view: View, told: list[str]) -> None:
        """An event a page."""
        size = self.page
        await self.publish(
            *(
                ["BlockStored", [self.name(prefix)], self.parent(prefix), list(prefix[0][-size:]), size, None]
                for prefix in new
            )
        )

    async def evict(self, prefix: Named) -> None:
        """Let a leaf go."""
        await self.publish(["BlockRemoved", [self.cached.pop(prefix)]])


class TrtllmServer(ForeignEngine):
    """Events by polling, drained by it; media by name; partial blocks too."""

    page = 32

    def __init__(self, layouter: Layouter) -> None:
        super().__init__(layouter)
        self.pending: list[dict[str, Any]] = [{"event_id": 0, "data": {"type": "created"}}]
        self.next_id = 1
        self.vocabulary = layouter.tokeniser.size

    def add_routes(self, app: web.Application) -> None:
        """Its own way to tell events."""
        app.router.add_get("/version", self._version)
        app.router.add_post("/kv_cache_events", self._drain)

    async def _metrics(self, request: web.Request) -> web.Response:
        cache = {"maxNumBlocks": 512, "usedNumBlocks": 128, "tokensPerBlock": self.page}
        return web.json_response([{"numActiveRequests": 3, "numQueuedRequests": 1, "kvCacheStats": cache}])

    async def _drain(self, request: web.Request) -> web.Response:
        drained, self.pending = self.pending, []
        return web.json_response(drained)

    def happened(self, data: dict[str, Any]) -> None:
        """Add an event."""
        self.pending.append({"event_id": self.next_id, "data": data})
        self.next_id += 1

    def name(self, prefix: Named) -> int:
        """Unsigned."""
        return hash(prefix) % 2**64

    def media(self, uuid: str, length: int) -> list[int]:
        """Ids beyond the vocabulary."""
        assert len(uuid) == 64
        first = self.vocabulary + int(uuid[:16], 16) % 2**20
        return list(range(first, first + length))

    async def announce(self, new: list[Named], view: View, told: list[str]) -> None:
        """One event for all of it, and one for the partial block at the end."""
        blocks = [self._block(prefix, view, told) for prefix in new]
        self.happened({"type": "stored", "parent_hash": self.parent(new[0]), "blocks": blocks})
        part = {**blocks[-1], "block_hash": 7, "tokens": blocks[-1]["tokens"][:3]}
        self.happened({"type": "stored", "parent_hash": blocks[-1]["block_hash"], "blocks": [part]})

    def _block(self, prefix: Named, view: View, told: list[str]) -> dict[str, Any]:
        start, end = len(prefix[0]) - self.page, len(prefix[0])
        keys = [
            {"type": "mm_key", "hash": told[span.item], "start_offset": max(0, start - span.offset)}
            for span in view.spans if span.offset < end and span.offset + span.length > start
        ]  # fmt: skip
        tokens = [{"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in prefix[0][start:]]
        return {
            "type": "stored_block", "block_hash": self.name(prefix), "tokens": tokens, "cache_level": 0, "priority": 35,
            "mm_keys": keys,
        }  # fmt: skip


def parts_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The media parts of a chat."""
    return [
        part
        for message in body["messages"] if isinstance(message["content"], list)
        for part in message["content"] if part["type"] == "image_url"
    ]  # fmt: skip


def shapes_of(body: dict[str, Any]) -> list[MediaShape]:
    """Their shapes, measured."""
    images = [
        Image.open(io.BytesIO(base64.b64decode(part["image_url"]["url"].partition(",")[2]))) for part in parts_of(body)
    ]
    return [MediaShape(MediaKind.IMAGE, image.height, image.width) for image in images]
