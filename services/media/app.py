"""The media stage, wired: ``requests`` in, ``media-resolved`` out."""

from __future__ import annotations

import aiohttp

from services.media.adapters import Adapters
from services.media.brought import Bringer, Brought
from services.media.connect import FencedResolver, open_session, rules_of
from services.media.decoding import Decoding
from services.media.fetch import Fetcher
from services.media.identify import Identifier
from services.media.memory import MemoryBudget
from services.media.modes import Modes
from services.media.resolve import Resolution
from services.media.revalidated import Revalidated
from services.media.sizes import RememberedSizes
from services.media.stage import MediaStage
from services.media.url_identity import DroppedParams
from services.media.video_rules import VideoRules
from services.runtime.blobs import REFRESH_FRACTION, Blobs
from services.runtime.bus import Record
from services.runtime.metrics import MEDIA_HELD_BYTES
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import REQUESTS, WORKERS

GROUP = "media"
_SWEEP_SECONDS = 600.0
_REMEMBERED_BYTES = 32 << 20
"""Of small media that stand in bodies and are remembered with their identities."""


class MediaApp:
    """Holds what lives as long as the stage: the HTTP client, decode workers, caches."""

    def __init__(self, settings: Settings, service: Service) -> None:
        self._settings = settings
        self._service = service
        self._rules = rules_of(settings)
        self._modes = Modes(settings)
        self._dropped = DroppedParams(settings.identity_drop_params)
        self.budget = MemoryBudget(settings.media_memory_bytes)
        self.blobs = Blobs.of(settings, clock=service.clock)
        self._decoding = Decoding(settings.media_decode_processes)
        self.adapters = Adapters()
        self._video_rules = VideoRules(settings, self.adapters.model_of)
        self._stage: MediaStage | None = None
        self._session: aiohttp.ClientSession | None = None
        self._resolver: FencedResolver | None = None
        self._identifier: Identifier | None = None
        MEDIA_HELD_BYTES.set_function(lambda: self.budget.held)

    async def start(self) -> None:
        """Open the HTTP client and put the parts together."""
        settings, clock = self._settings, self._service.clock
        self._resolver = FencedResolver(self._rules, clock)
        self._session = open_session(settings, self._resolver)
        fetcher = Fetcher(self._session, self._resolver, self._rules, settings, self.budget)
        sizes = RememberedSizes(
            fetcher.size, clock, entries=settings.media_size_cache, seconds=settings.media_size_cache_seconds
        )
        known: Revalidated[Brought] = Revalidated(
            clock, entries=settings.media_identity_cache, size_limit=_REMEMBERED_BYTES,
            seconds=min(settings.media_identity_cache_seconds, settings.blob_ttl_seconds / REFRESH_FRACTION),
        )  # fmt: skip
        bringer = Bringer(fetcher, self.blobs, self._decoding, self.budget, known, settings)
        self._identifier = Identifier(fetcher, sizes, bringer, self._video_rules, self.budget, self._dropped, settings)
        self._stage = MediaStage(self._service, Resolution(self._identifier, self.blobs, self._modes, settings))
        self._service.log.info("media stage ready", identity=settings.identity, claims=self.blobs.description)

    async def handle(self, record: Record) -> None:
        """Take one record of ``requests``."""
        assert self._stage is not None, "records are taken after start()"
        await self._stage.handle(record)

    async def sweep(self) -> None:
        """Remove expired claims."""
        removed = await self.blobs.sweep()
        if removed:
            self._service.log.info("expired claims removed", count=removed)

    async def stop(self) -> None:
        """Give up fetches, close the client and the decode workers."""
        if self._identifier is not None:
            await self._identifier.close()
        if self._session is not None:
            await self._session.close()
        if self._resolver is not None:
            await self._resolver.close()
        self._decoding.close()


def build(settings: Settings, service: Service) -> MediaApp:
    """Register the stage on its service."""
    app = MediaApp(settings, service)
    service.follow_control()
    service.on_start(app.start)
    service.on_stop(app.stop)
    service.project(WORKERS, app.adapters.take)
    service.consume(REQUESTS, app.handle, group=GROUP)
    service.every(_SWEEP_SECONDS, app.sweep, name="sweep_claims")
    service.ready_when(app.blobs.description, app.blobs.usable)
    return app
