"""One router replica as its own process: ``python -m tests.integration.router.replica SETTINGS.json``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from services.router.app import build
from services.runtime.logs import setup_logging
from services.runtime.service import Service
from services.runtime.settings import Settings


async def main(settings: Settings) -> None:
    setup_logging(settings)
    service = Service("router", settings)
    build(settings, service)
    await service.run()


if __name__ == "__main__":
    asyncio.run(main(Settings.model_validate_json(Path(sys.argv[1]).read_bytes())))
