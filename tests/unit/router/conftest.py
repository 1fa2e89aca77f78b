"""A started router that owns its partition."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from services.runtime.topics import EXPANDED
from tests.unit.router.stage import Stage, start


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = start()
    await stage.harness.start()
    await stage.harness.assign(EXPANDED, {0})
    yield stage
    await stage.harness.stop()
