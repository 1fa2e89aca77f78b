"""Wires the agent: work in, answers, facts, cache changes and heartbeats out."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from functools import partial
from typing import Any

from schemas.control import Control
from services.runtime.blobs import Blobs
from services.runtime.errors import ConfigError
from services.runtime.host_memory import HostMemory
from services.runtime.offload import run_in_thread
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import WORK, WORKERS, work_topic
from services.worker.agent import Agent
from services.worker.attempt import Tools
from services.worker.bindings import Bindings
from services.worker.by_render import ByRender
from services.worker.executor import Executor
from services.worker.forward import PostsChat
from services.worker.kinds import kind_of
from services.worker.payload_room import PayloadRoom


def build(settings: Settings, service: Service, *, randomness: random.Random | None = None) -> Agent:
    """Register the agent of one engine on a service. Raises ConfigError without a worker id."""
    worker_id = settings.worker_id
    if worker_id is None:
        raise ConfigError(
            "KVROUTE_WORKER_ID is not set: every agent needs a name of its own, lower-case letters, digits and dashes"
        )
    kind = kind_of(settings)
    engine = kind.engine()
    bindings = Bindings(service.clock.monotonic)
    posts: PostsChat = engine
    if settings.worker_render_generate and kind.name == "vllm":
        memory = HostMemory.of(settings)
        posts = ByRender(
            engine, settings.render_url, seconds=settings.render_seconds, memory=memory,
            renames=lambda: bindings.active,
        )  # fmt: skip
        if memory is not None:
            sweep = partial(run_in_thread, memory.sweep)
            service.every(settings.render_handover_seconds, sweep, name="handover")
    tools = Tools(
        service.sender, service.clock, posts, Blobs.of(settings, clock=service.clock), kind,
        bindings, PayloadRoom(settings.worker_media_bytes),
    )  # fmt: skip

    def spawn(coro: Any, name: str) -> asyncio.Task[None]:
        return service.spawn(coro, name=name)

    executor = Executor(worker_id, tools, max_concurrency=settings.worker_max_concurrency, spawn=spawn)
    agent = Agent(worker_id, settings, service, kind, engine, executor, randomness=randomness)

    def heed(order: Control) -> None:
        waiting = agent.control(order)
        if waiting is not None:
            spawn(waiting, "drain")

    async def start() -> None:
        await engine.__aenter__()
        topic = work_topic(worker_id)
        await service.ensure_topic(topic, WORK)
        # From here on nothing is missed: the epoch is announced later than this offset was noted.
        end = (await service.highwater(dataclasses.replace(WORK, name=topic), 0)).get(0, 0)
        service.consume_from(topic, executor.take, offset=end, concurrency=settings.worker_max_concurrency)
        spawn(agent.run(), "agent")

    async def stop() -> None:
        await engine.__aexit__()

    service.project(WORKERS, agent.apply_worker)
    service.follow_control()
    service.cancellations.on_control(heed)
    service.every(settings.heartbeat_seconds, agent.beat, name="heartbeat")
    service.ready_when("engine is not registered", lambda: agent.registered)
    service.on_start(start)
    service.on_drain(agent.stop)
    service.on_stop(stop)
    return agent
