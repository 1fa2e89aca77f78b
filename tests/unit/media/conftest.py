"""The media stage on a service in memory, and a web server for it to fetch from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from schemas.lifecycle import Lifecycle
from schemas.media import MediaItem, MediaResolved
from schemas.work import Response
from services.media.app import MediaApp, build
from services.runtime.settings import Settings
from services.runtime.topics import LIFECYCLE, MEDIA_RESOLVED, REQUESTS
from tests.fakes import Harness
from tests.unit.media.site import Site

REPLY_TO = "kvroute.responses.tests.v1"


class Stage:
    """What tests say to the stage and hear from it."""

    def __init__(self, harness: Harness, app: MediaApp) -> None:
        self.harness = harness
        self.app = app

    async def push(self, value: bytes | dict[str, Any] | None, **record: Any) -> None:
        raw = orjson.dumps(value) if isinstance(value, dict) else value
        await self.harness.push(REQUESTS, raw, key="k", **record)

    async def ask(self, *content: dict[str, Any], **request: Any) -> None:
        """A request with these content parts."""
        await self.push({"reply_to": REPLY_TO, "body": chat(*content)} | request)

    async def items(self, *content: dict[str, Any], **request: Any) -> list[MediaItem]:
        self.harness.sender.clear()
        await self.ask(*content, **request)
        return self.resolved.media

    @property
    def resolved(self) -> MediaResolved:
        [message] = self.harness.sender.messages(MEDIA_RESOLVED.name, MediaResolved)
        return message

    @property
    def passed_on(self) -> list[MediaResolved]:
        return self.harness.sender.messages(MEDIA_RESOLVED.name, MediaResolved)

    @property
    def body(self) -> dict[str, Any]:
        return dict(orjson.loads(self.resolved.body or "null"))

    @property
    def facts(self) -> list[Lifecycle]:
        return self.harness.sender.messages(LIFECYCLE.name, Lifecycle)

    @property
    def answers(self) -> list[Response]:
        return self.harness.sender.messages(REPLY_TO, Response)

    @property
    def refusal(self) -> tuple[int, str | None]:
        """Status and code of the one refusal; nothing was passed on."""
        [answer] = self.answers
        assert answer.error is not None
        assert answer.final
        assert not self.passed_on
        return answer.error.status, answer.error.code


def chat(*content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    parts = [*content, {"type": "text", "text": "What is this?"}]
    return {"model": "m", "messages": [{"role": "user", "content": parts}]} | fields


def image_part(url: str | None, **beside: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}} | beside


MakeStage = Callable[..., Awaitable[Stage]]


@pytest.fixture
async def make_stage(tmp_path: Path) -> AsyncIterator[MakeStage]:
    """A started stage; settings as keywords. Private addresses are allowed unless said otherwise."""
    harnesses: list[Harness] = []

    async def make(**settings: Any) -> Stage:
        given = {"data_dir": tmp_path, "media_allow_private": True, "media_decode_processes": 0} | settings
        harness = Harness("media", Settings(**given))
        app = build(harness.settings, harness)  # type: ignore[arg-type] # the harness is a service
        await harness.start()
        harnesses.append(harness)
        return Stage(harness, app)

    yield make
    for harness in harnesses:
        await harness.stop()


@pytest.fixture
async def stage(make_stage: MakeStage) -> Stage:
    return await make_stage()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = await Site().start()
    yield made
    await made.stop()
