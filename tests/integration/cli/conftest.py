"""Commands in a thread of their own: each runs a loop, beside the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from services.cli.broker import KafkaBroker
from services.cli.main import run
from services.cli.session import Wiring
from services.runtime.settings import Settings
from tests.fakes.cli import Ran, caught


@pytest.fixture
def in_thread(settings: Settings) -> Callable[..., Awaitable[Ran]]:
    """Run `kvroute …` on this test's broker and wait for it."""

    def command(*arguments: str) -> Ran:
        with caught() as (out, err):
            code = run(arguments, Wiring(broker=lambda _: KafkaBroker(settings)))
        return Ran(code, out.getvalue(), err.getvalue())

    async def wait(*arguments: str) -> Ran:
        return await asyncio.to_thread(command, *arguments)

    return wait
