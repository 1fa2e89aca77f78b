"""Services on a real broker that stop with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from services.runtime.sender import KafkaSender
from services.runtime.service import Service
from services.runtime.settings import Settings

MakeService = Callable[..., Service]


@pytest.fixture
async def make_service(settings: Settings) -> AsyncIterator[MakeService]:
    """Make services by name (and settings that differ); all are stopped at the end."""
    async with AsyncExitStack() as stack:

        def make(name: str = "media", **overrides: Any) -> Service:
            service = Service(name, settings.model_copy(update=overrides))
            stack.push_async_callback(service.stop)
            return service

        yield make


@pytest.fixture
async def sender(settings: Settings) -> AsyncIterator[KafkaSender]:
    """A sender of its own, for the test's records."""
    sender = KafkaSender(settings, "test")
    await sender.start()
    yield sender
    await sender.stop()
