"""Processors beside the layout stage: asked before a request is laid out, in threads that wait for nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

from schemas.media import MediaItem
from services.layout.card import ModelCard
from services.layout.families.family import NotExact
from services.layout.layouter import Layouter
from services.layout.paths import layout_path
from services.layout.processor.asked import Medium
from services.layout.processor.card import processor_card
from services.layout.processor.family import ProcessorFamily, medium_of
from services.layout.processor.processes import Processes
from services.layout.shapes import MediaShape
from services.runtime.settings import Settings


class Processing:
    """The processors of a stage's models. As many media are asked about at once as there are processes."""

    def __init__(self, settings: Settings, processes: Processes | None = None) -> None:
        """``processes`` are made from the settings unless given."""
        self._settings = settings
        self._processes = processes or Processes.of(settings)
        self._threads = ThreadPoolExecutor(settings.processor_processes, thread_name_prefix="kvroute-processor")

    def dress(self, card: ModelCard) -> ModelCard:
        """The card of a model that its processor lays out; any other card as it is. Blocking, some seconds."""
        if layout_path(self._settings, card.name) != "processor":
            return card
        dressed = processor_card(card, self._processes)
        if not isinstance(dressed.family, ProcessorFamily):
            return dressed
        # Laying out only looks up: whatever was not asked before it is not exact.
        recall = partial(self._processes.recall, dressed.folder)
        return replace(dressed, family=replace(dressed.family, ask=recall))

    async def prepare(self, layouter: Layouter | None, media: Sequence[MediaItem], seconds: float) -> None:
        """Ask the model's processor about media it has not seen in their sizes. Raises TimeoutError."""
        family = None if layouter is None else layouter.card.family
        if layouter is None or not isinstance(family, ProcessorFamily):
            return
        wanted = [medium for item in media if (medium := _medium(family, MediaShape.of(item))) is not None]
        if not wanted:
            return
        enough = Event()
        try:
            async with asyncio.timeout(seconds):
                await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._ask, layouter.card.folder, wanted, enough
                )
        finally:
            enough.set()

    def close(self) -> None:
        """End threads and processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._processes.close()

    def _ask(self, folder: Path, wanted: Sequence[Medium], enough: Event) -> None:
        for medium in wanted:
            if enough.is_set():
                return
            with suppress(NotExact):  # remembered, and found again when the request is laid out
                self._processes.expand(folder, medium)


def _medium(family: ProcessorFamily, shape: MediaShape) -> Medium | None:
    if shape.reason is not None or family.placeholder(shape.kind) is None:
        return None
    try:
        return medium_of(shape)
    except NotExact:
        return None
