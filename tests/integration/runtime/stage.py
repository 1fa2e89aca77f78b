"""A stage as a process of its own, for tests that kill it: copies ``requests`` to ``media-resolved``, slowly.

Usage: python -m tests.integration.runtime.stage BOOTSTRAP PROFILE PREFIX MILLISECONDS HEALTH_PORT
"""

from __future__ import annotations

import asyncio
import sys

from services.runtime.bus import Record
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import MEDIA_RESOLVED, REQUESTS


async def main(bootstrap: str, profile: str, prefix: str, milliseconds: str, health_port: str) -> None:
    """Run until SIGTERM."""
    settings = Settings(
        kafka_bootstrap=bootstrap,
        kafka_profile=profile,  # type: ignore[arg-type]
        topic_prefix=prefix,
        health_port=int(health_port),
        concurrency=8,
    )
    service = Service("media", settings)

    async def copy(record: Record) -> None:
        await asyncio.sleep(int(milliseconds) / 1000)
        await service.sender.send_raw(MEDIA_RESOLVED.name, record.value, key=record.key)

    service.consume(REQUESTS, copy, group="media")
    await service.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
