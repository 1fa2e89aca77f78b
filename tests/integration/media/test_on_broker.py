"""The media stage on a real broker: rubbish, slow servers and good requests side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from schemas.lifecycle import Lifecycle, LifecycleEvent
from schemas.media import MediaResolved
from schemas.work import Response
from services.kv.reason import Reason
from services.media.app import build
from services.runtime.blobs import Blobs
from services.runtime.bus import Record
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import DEAD_LETTERS, LIFECYCLE, MEDIA_RESOLVED, REQUESTS, RESPONSES
from tests.unit.media.conftest import chat, image_part
from tests.unit.media.images import data_uri, encoded, huge_png
from tests.unit.media.site import Site

REPLY_TO = "kvroute.responses.tester.v1"
WAIT = 30.0


class Pipeline:
    """The stage, and a service that plays its neighbours."""

    def __init__(self, settings: Settings) -> None:
        stage_settings = settings.model_copy(
            update={"media_allow_private": True, "media_decode_processes": 0, "media_fetch_seconds": 3.0}
        )
        self.stage = Service("media", stage_settings, health=False)
        self.around = Service("around", settings, health=False)
        self.resolved: dict[str, MediaResolved] = {}
        self.facts: list[Lifecycle] = []
        self.dead: list[Record] = []
        self.answers: list[Response] = []
        self._moved = asyncio.Event()
        build(stage_settings, self.stage)
        self.around.project(MEDIA_RESOLVED, self._keep_resolved)
        self.around.project(LIFECYCLE, lambda record: self._keep(self.facts, Lifecycle.from_bytes(record.value or b"")))
        self.around.project(DEAD_LETTERS, lambda record: self._keep(self.dead, record))
        self.around.on_start(self._read_answers)

    async def start(self) -> None:
        await self.around.start()
        await self.stage.start()

    async def stop(self) -> None:
        await self.stage.stop()
        await self.around.stop()

    async def send(self, value: bytes | dict[str, Any] | None, key: str = "k") -> None:
        raw = orjson.dumps(value) if isinstance(value, dict) else value
        await self.around.sender.send_raw(REQUESTS.name, raw, key=key.encode())

    async def ask(self, request_id: str, *content: dict[str, Any], **fields: Any) -> None:
        await self.send(
            {"request_id": request_id, "reply_to": REPLY_TO, "body": chat(*content)} | fields, key=request_id
        )

    async def until(self, true: Any) -> None:
        async with asyncio.timeout(WAIT):
            while not true():
                self._moved.clear()
                await self._moved.wait()

    async def _read_answers(self) -> None:
        await self.around.ensure_topic(REPLY_TO, RESPONSES)

        async def keep(record: Record) -> None:
            self._keep(self.answers, Response.from_bytes(record.value or b""))

        self.around.consume_from(REPLY_TO, keep)

    def _keep_resolved(self, record: Record) -> None:
        message = MediaResolved.from_bytes(record.value or b"")
        self.resolved[message.request_id] = message
        self._moved.set()

    def _keep(self, into: list[Any], what: Any) -> None:
        into.append(what)
        self._moved.set()


@pytest.fixture
async def pipeline(settings: Settings) -> AsyncIterator[Pipeline]:
    made = Pipeline(settings)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = await Site(files={"/a.png": encoded()}).start()
    yield made
    await made.stop()


async def test_an_image_is_identified_and_the_acceptance_stated(pipeline: Pipeline, site: Site) -> None:
    await pipeline.ask("r1", image_part(site.url("/a.png")), tenant="t", session_id="s")
    await pipeline.until(lambda: "r1" in pipeline.resolved and pipeline.facts)
    resolved, fact = pipeline.resolved["r1"], pipeline.facts[0]
    assert (resolved.media[0].width, resolved.media[0].forward, resolved.tenant) == (30, True, "t")
    assert (fact.event, fact.stage, fact.model, fact.session_id) == (LifecycleEvent.ACCEPTED, "media", "m", "s")
    assert set(resolved.timings_ms) == {"media_wait", "media"}


async def test_rubbish_goes_to_the_dead_letters_and_holds_nobody(pipeline: Pipeline) -> None:
    rubbish = [
        b"not json", b"null", b"", None, b"[]", b"[" * 10_000 + b"]" * 10_000, rb'{"body": "\ud800"}',
        orjson.dumps({"request_id": "x", "reply_to": "kvroute.decisions.v1", "body": chat()}),
    ]  # fmt: skip
    for round_ in range(3):
        for value in rubbish:
            await pipeline.send(value)
        await pipeline.ask(f"good-{round_}")
    await pipeline.until(lambda: len(pipeline.resolved) == 3 and len(pipeline.dead) == 3 * len(rubbish))
    assert not pipeline.answers
    codes = {dict(record.headers)["dlq-code"] for record in pipeline.dead}
    assert codes == {b"not_json", b"not_an_object", b"empty", b"invalid_message"}


async def test_every_refusal_is_answered_once(pipeline: Pipeline) -> None:
    await pipeline.ask("scheme", image_part("file:///etc/passwd"))
    await pipeline.ask("late", deadline_ms=1)
    await pipeline.send({"request_id": "empty", "reply_to": REPLY_TO, "body": {"model": "m", "messages": []}})
    await pipeline.ask("good")
    await pipeline.until(lambda: len(pipeline.answers) == 3 and "good" in pipeline.resolved)
    found = {answer.request_id: answer.error.status for answer in pipeline.answers if answer.error}
    assert found == {"scheme": 400, "late": 504, "empty": 400}
    assert set(pipeline.resolved) == {"good"}


async def test_a_slow_server_holds_nobody_else(pipeline: Pipeline, site: Site) -> None:
    slow = await Site(files={"/a.png": encoded()}, delay=2.5).start()
    try:
        started = time.monotonic()
        for number in range(12):
            await pipeline.ask(f"slow-{number}", image_part(slow.url(f"/a.png?{number}")))
            await pipeline.ask(f"quick-{number}", image_part(site.url("/a.png")))
        await pipeline.until(lambda: sum(name.startswith("quick") for name in pipeline.resolved) == 12)
        quick = time.monotonic() - started
        assert not any(name.startswith("slow") for name in pipeline.resolved), f"quick ones took {quick:.1f} s"
        await pipeline.until(lambda: len(pipeline.resolved) == 24)
        assert all(resolved.media[0].width == 30 for resolved in pipeline.resolved.values())
    finally:
        await slow.stop()


async def test_bad_images_go_on_with_their_reason(pipeline: Pipeline, site: Site) -> None:
    site.files |= {"/cut.jpg": encoded(image_format="JPEG")[:-200], "/empty": b"", "/page": b"<html>"}
    cases = {
        "base64": (image_part("data:image/png;base64,@@"), Reason.DECODE_FAILED),
        "cut": (image_part(site.url("/cut.jpg")), Reason.DECODE_FAILED),
        "empty": (image_part(site.url("/empty")), Reason.DECODE_FAILED),
        "page": (image_part(site.url("/page")), Reason.DECODE_FAILED),
        "huge": (image_part(data_uri(huge_png(20_000, 20_000))), Reason.TOO_LARGE),
        "gone": (image_part("http://127.0.0.1:2/a.png"), Reason.FETCH_FAILED),
    }
    for name, (part, _) in cases.items():
        await pipeline.ask(name, part, identity="content")
    await pipeline.until(lambda: set(pipeline.resolved) == set(cases))
    assert {name: pipeline.resolved[name].media[0].reason for name in cases} == {
        name: reason for name, (_, reason) in cases.items()
    }


async def test_a_large_body_travels_as_a_claim(pipeline: Pipeline) -> None:
    text = {"type": "text", "text": "x" * 300_000}
    await pipeline.ask("large", text)
    await pipeline.until(lambda: "large" in pipeline.resolved)
    resolved = pipeline.resolved["large"]
    assert resolved.body is None
    assert resolved.body_claim is not None
    body = orjson.loads(await Blobs.of(pipeline.stage.settings).get(resolved.body_claim))
    assert body["messages"][0]["content"][0] == text
