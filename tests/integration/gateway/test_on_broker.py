"""Gateway and media stage on a real broker; the rest of the pipeline is played by an echo."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest

from schemas.control import ControlKind
from schemas.lifecycle import Lifecycle
from schemas.media import MediaResolved
from schemas.work import Response
from services.gateway.app import build as build_gateway
from services.kv.reason import Reason
from services.media.app import build as build_media
from services.runtime.blobs import Blobs
from services.runtime.bus import Record
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import LIFECYCLE, MEDIA_RESOLVED
from tests.unit.gateway.conftest import error_of
from tests.unit.media.conftest import chat, image_part
from tests.unit.media.images import data_uri, encoded, huge_png, image

WAIT = 30.0
PATH = "/v1/chat/completions"


class Echo:
    """Answers resolved requests with what it got: whole, or as a stream of three pieces (duplicated, as retries do)."""

    def __init__(self, settings: Settings) -> None:
        self.service = Service("echo", settings, health=False)
        self.resolved: list[MediaResolved] = []
        self.facts: list[Lifecycle] = []
        self.silent = False
        self.moved = asyncio.Event()
        self.service.follow_control()
        self.cancelled: list[str] = []
        self.service.cancellations.on_control(self._heed)
        self.service.consume(MEDIA_RESOLVED, self._answer, group="echo")
        self.service.project(LIFECYCLE, lambda record: self.facts.append(Lifecycle.from_bytes(record.value or b"")))

    async def until(self, true: Any) -> None:
        async with asyncio.timeout(WAIT):
            while not true():
                self.moved.clear()
                await self.moved.wait()

    def _heed(self, order: Any) -> None:
        if order.kind is ControlKind.CANCEL:
            self.cancelled.append(order.key)
            self.moved.set()

    async def _answer(self, record: Record) -> None:
        request = MediaResolved.from_bytes(record.value or b"")
        self.resolved.append(request)
        self.moved.set()
        if request.stream:
            await self._piece(request, 0, 'data: {"n":0}\n\n')
        if self.silent:
            return
        if not request.stream:
            await self._piece(request, 0, orjson.dumps({"echo": request.request_id}).decode(), final=True)
            return
        for _ in range(2):
            await self._piece(request, 1, 'data: {"n":1}\n\n')
        await self._piece(request, 2, "data: [DONE]\n\n", final=True)

    async def _piece(self, request: MediaResolved, index: int, chunk: str, *, final: bool = False) -> None:
        piece = Response(
            request_id=request.request_id, tenant=request.tenant, attempt=1, worker_id="echo", epoch=1, index=index,
            chunk=chunk, final=final,
        )  # fmt: skip
        await self.service.sender.send(request.reply_to or "", piece, key=piece.key)


class Front:
    """The two stages and the echo, and a client."""

    def __init__(self, settings: Settings) -> None:
        given = {
            "gateway_port": 0, "media_decode_processes": 0, "instance": "it", "gateway_api_keys": "k1=acme",
            "media_allow_private": False,
        }  # fmt: skip
        self.settings = Settings(**(settings.model_dump() | given))
        self.echo = Echo(settings)
        self.media = Service("media", self.settings, health=False)
        self.gateway = Service("gateway", self.settings, health=False)
        build_media(self.settings, self.media)
        self.app = build_gateway(self.settings, self.gateway)
        self.client: aiohttp.ClientSession

    async def __aenter__(self) -> Front:
        await asyncio.gather(*(service.start() for service in (self.echo.service, self.media, self.gateway)))
        self.client = aiohttp.ClientSession(
            f"http://127.0.0.1:{self.app.server.port}",
            headers={"Authorization": "Bearer k1"},
            timeout=aiohttp.ClientTimeout(total=WAIT),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await asyncio.gather(*(service.stop() for service in (self.gateway, self.media, self.echo.service)))


@pytest.fixture
async def front(settings: Settings) -> AsyncIterator[Front]:
    async with Front(settings) as made:
        yield made


async def test_whole_and_streamed_answers(front: Front) -> None:
    whole = await front.client.post(PATH, json=chat(), headers={"X-Request-Id": "r1"})
    assert (whole.status, await whole.json()) == (200, {"echo": "r1"})
    assert whole.headers["x-kvroute-worker"] == "echo"
    stream = await front.client.post(PATH, json=chat(stream=True))
    assert await stream.text() == 'data: {"n":0}\n\ndata: {"n":1}\n\ndata: [DONE]\n\n'
    assert front.echo.resolved[0].tenant == "acme"


async def test_many_at_once_each_get_their_own_answer(front: Front) -> None:
    async def one(number: int) -> bool:
        stream = number % 2 == 1
        response = await front.client.post(PATH, json=chat(stream=stream), headers={"X-Request-Id": f"r{number}"})
        text = await response.text()
        return text.endswith("[DONE]\n\n") if stream else orjson.loads(text) == {"echo": f"r{number}"}

    assert all(await asyncio.gather(*(one(number) for number in range(60))))
    assert len(front.app.register) == 0


async def test_sixteen_megabytes_of_images_pass_beside_kafka(front: Front) -> None:
    picture = encoded(image(1400, 1200), compress_level=0)
    assert 11_000_000 < len(data_uri(picture)) * 2 < front.settings.gateway_max_body_bytes
    response = await front.client.post(PATH, json=chat(image_part(data_uri(picture)), image_part(data_uri(picture))))
    assert response.status == 200
    [resolved] = front.echo.resolved
    assert [(item.width, item.reason, item.forward) for item in resolved.media] == [(1400, None, True)] * 2
    claims = [item.claim for item in resolved.media]
    assert resolved.body_claim is None
    assert claims[0] is not None
    assert claims[0] == claims[1].model_copy(update={"expires_ms": claims[0].expires_ms}) if claims[1] else False
    assert await Blobs.of(front.settings).get(claims[0]) == picture


async def test_what_the_media_stage_refuses_comes_back_as_an_openai_error(front: Front) -> None:
    for body, status, code in (
        (chat(image_part("http://169.254.169.254/latest/meta-data")), 400, "forbidden_url"),
        (chat(image_part("file:///etc/passwd")), 400, "forbidden_url"),
        ({"model": "m", "messages": []}, 400, "invalid_request"),
        ({"messages": [{"role": "user", "content": "x"}]}, 400, "invalid_request"),
        (chat() | {"x": [[[[0]]]], "pad": "y" * 300_000, "messages": 5}, 400, "invalid_request"),
    ):
        assert await error_of(await front.client.post(PATH, json=body)) == (status, code)
    assert not front.echo.resolved
    assert (await front.client.post(PATH, json=chat())).status == 200


async def test_a_huge_image_costs_its_exactness_only(front: Front) -> None:
    response = await front.client.post(PATH, json=chat(image_part(data_uri(huge_png(20_000, 20_000)))))
    assert response.status == 200
    assert front.echo.resolved[0].media[0].reason is Reason.TOO_LARGE


async def test_who_goes_away_cancels_everywhere(front: Front) -> None:
    front.echo.silent = True
    response = await front.client.post(PATH, json=chat(stream=True), headers={"X-Request-Id": "gone"})
    assert await response.content.readuntil(b"\n\n") == b'data: {"n":0}\n\n'
    response.close()
    call = asyncio.create_task(front.client.post(PATH, json=chat(), headers={"X-Request-Id": "gone-too"}))
    await front.echo.until(lambda: len(front.echo.resolved) == 2)
    call.cancel()
    await front.echo.until(lambda: len(front.echo.cancelled) == 2)
    assert set(front.echo.cancelled) == {"acme/gone", "acme/gone-too"}


async def test_a_deadline_that_passes_is_504(front: Front) -> None:
    front.echo.silent = True
    response = await front.client.post(PATH, json=chat(), headers={"X-Kvroute-Deadline-Ms": "700"})
    assert await error_of(response) == (504, "deadline_exceeded")
    await front.echo.until(lambda: front.echo.cancelled)


async def test_draining_lets_answers_end(front: Front) -> None:
    front.echo.silent = True
    response = await front.client.post(PATH, json=chat(stream=True), headers={"X-Request-Id": "last"})
    await front.echo.until(lambda: front.echo.resolved)
    stopping = asyncio.create_task(front.gateway.stop())
    await asyncio.sleep(0.1)
    assert not stopping.done()
    for index, chunk in ((1, "data: [DONE]\n\n"),):
        await front.echo._piece(front.echo.resolved[0], index, chunk, final=True)
    assert (await response.text()).endswith("[DONE]\n\n")
    await asyncio.wait_for(stopping, WAIT)
