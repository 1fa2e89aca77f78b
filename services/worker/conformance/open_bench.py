"""Finds out what there is to test: asks the engine who it is, loads the model folder, reaches the events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.layout.card import CardError
from services.runtime.errors import ConfigError, KvrouteError
from services.runtime.offload import run_in_thread
from services.runtime.settings import Settings
from services.worker.conformance.bench import Bench
from services.worker.conformance.suite import Suite
from services.worker.endpoints import sources
from services.worker.engine import Engine, Health
from services.worker.engines.vllm import VllmEvents
from services.worker.engines.vllm_keys import KeyReader, dialect_of
from services.worker.life import ask_facts
from services.worker.model_layout import load_layout
from services.worker.probes import Subject


@asynccontextmanager
async def open_suite(settings: Settings) -> AsyncIterator[Suite]:
    """The suite for the engine and the model folder of the settings. Raises KvrouteError."""
    async with Engine(settings.worker_engine_url) as engine:
        facts, metrics = await ask_facts(engine, settings.block_sizes)
        try:
            layout = (await run_in_thread(load_layout, settings, facts.model)).under(facts.max_model_len)
        except CardError as error:
            raise ConfigError(str(error)) from None
        found = sources(
            await engine.event_sources(), engine.url, events=settings.worker_events, replay=settings.worker_replay
        )
        if not found:
            raise KvrouteError(
                f"{engine.url} states no KV events over ZMQ: start the engine with --kv-events-config, or give --events"
            )
        reader = KeyReader(dialect_of(facts.version), layout.placeholders)
        bench = Bench(engine, facts, layout, found[0], VllmEvents(reader), ranks=max(1, len(metrics.loads)))
        subject = Subject(
            facts.model, layout.card.variant, facts.block_size, layout.lays_images, layout.pixel_bound,
            layout.videos(settings), generic=layout.generic, no_images=layout.card.media_detail or "",
        )  # fmt: skip
        try:
            async with bench:
                yield Suite(bench, subject)
        finally:
            layout.close()


def facts_of(suite: Suite, settings: Settings, kvroute_version: str) -> dict[str, str]:
    """What a reader must know to repeat the checks."""
    facts = suite.bench.facts
    return {
        "engine": f"{settings.worker_engine} {facts.version or 'of unknown version'}",
        "model": facts.model,
        "layout": suite.subject.variant,
        "block size": str(facts.block_size),
        "blocks": str(facts.num_blocks or "unknown"),
        "longest prompt": str(facts.max_model_len or "unknown"),
        "kvroute": kvroute_version,
    }


async def restart_by(command: str, engine: Engine, seconds: float) -> None:
    """Run a shell command that restarts the engine, and wait until it has gone and come back. Raises KvrouteError."""
    process = await asyncio.create_subprocess_shell(command)
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
            if code:
                raise KvrouteError(f"the restart command ended with {code}: {command}")
            while await engine.health() is not Health.OK:  # noqa: ASYNC110 - somebody else's state
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise KvrouteError(f"the engine was not up again {seconds:.0f} s after the restart command began") from None
