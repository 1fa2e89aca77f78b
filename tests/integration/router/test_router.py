"""Routers on a broker: caches learnt from events, one decision per attempt whatever is killed, no request left."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from schemas.control import Control, ControlKind
from schemas.decision import Decision, Outcome
from schemas.expanded import Expanded
from schemas.lifecycle import Lifecycle, LifecycleEvent
from services.router.app import build
from services.runtime.service import Service
from services.runtime.settings import Settings
from services.runtime.topics import CONTROL, DECISIONS, EXPANDED, LIFECYCLE
from tests.integration.router.agents import MODEL, Agents

NAMES = ("w1", "w2", "w3")
PATIENCE = 60.0


def prompt(number: int, blocks: int = 8) -> list[int]:
    return [number * 1000 + block for block in range(1, blocks + 1)]


class World:
    """Everything around the routers: agents, a sender of requests, a reader of what comes out."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.agents = Agents(settings, NAMES)
        self.observer = Service("observer", settings, health=False)
        self.decisions: list[Decision] = []
        self.facts: list[Lifecycle] = []
        self.orders: list[Control] = []
        self.replicas: list[asyncio.subprocess.Process] = []
        self.observer.project(DECISIONS, lambda record: self.decisions.append(Decision.from_bytes(record.value)))
        self.observer.project(LIFECYCLE, lambda record: self.facts.append(Lifecycle.from_bytes(record.value)))
        self.observer.project(CONTROL, lambda record: self.orders.append(Control.from_bytes(record.value)))

    async def start(self) -> None:
        await self.observer.start()
        await self.agents.start()

    async def stop(self) -> None:
        for replica in self.replicas:
            if replica.returncode is None:
                replica.kill()
                await replica.wait()
        await self.agents.service.stop()
        await self.observer.stop()

    async def router(self, tmp_path: Path, name: str) -> asyncio.subprocess.Process:
        """Start a replica as a process of its own."""
        path = tmp_path / f"{name}.json"
        path.write_text(self.settings.model_copy(update={"instance": name}).model_dump_json())
        replica = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.integration.router.replica", str(path),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        self.replicas.append(replica)
        return replica

    async def ask(self, request_id: str, addresses: list[int], **fields) -> None:
        now_ms = self.observer.clock.now_ms()
        request = Expanded(
            request_id=request_id, model=MODEL, body="{}", prompt_tokens=16 * len(addresses),
            exact_tokens=16 * len(addresses), addresses={16: addresses}, created_at_ms=now_ms,
            deadline_ms=now_ms + 60_000, **fields,
        )  # fmt: skip
        await self.observer.sender.send(EXPANDED.name, request, key=request.key)

    def ended(self) -> set[str]:
        return {fact.request_id for fact in self.facts if fact.event is LifecycleEvent.FINISHED}

    def outcomes(self) -> Counter[LifecycleEvent]:
        return Counter(fact.event for fact in self.facts)


async def until(check: Callable[[], bool], what: str) -> None:
    async def wait() -> None:
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    try:
        await asyncio.wait_for(wait(), PATIENCE)
    except TimeoutError:
        pytest.fail(f"waited {PATIENCE} s for: {what}")


@pytest.fixture
async def world(settings: Settings) -> AsyncIterator[World]:
    world = World(settings)
    await world.start()
    yield world
    await world.stop()


async def test_requests_follow_the_caches_and_a_new_router_learns_them_from_snapshots(world: World) -> None:
    for number, name in enumerate(NAMES):
        await world.agents.store(name, prompt(number))
    for generation in range(2):
        service = Service("router", world.settings.model_copy(update={"instance": f"router-{generation}"}))
        build(world.settings, service)
        await service.start()
        for number in range(len(NAMES)):
            await world.ask(f"g{generation}-{number}", [*prompt(number), *prompt(50 + number)])
        await until(lambda: len(world.ended()) == 3 * (generation + 1), "all requests to finish")  # noqa: B023
        await service.stop()
        latest = {d.request_id: d for d in world.decisions if d.router == f"router-{generation}"}
        for number, name in enumerate(NAMES):
            found = latest[f"g{generation}-{number}"]
            assert (found.worker_id, found.overlap_confirmed, found.total_blocks) == (name, 8, 16)


async def test_one_of_two_routers_is_killed_and_every_attempt_is_decided_and_run_once(
    world: World, tmp_path: Path
) -> None:
    first = await world.router(tmp_path, "router-a")
    await world.ask("warm-up", prompt(1))
    await until(lambda: world.ended() == {"warm-up"}, "the first router to route")
    await world.router(tmp_path, "router-b")
    total = 300
    for number in range(total):
        await world.ask(f"r{number}", prompt(number % 20))
        if number == 150:
            first.send_signal(signal.SIGKILL)
            await first.wait()
        await asyncio.sleep(0.005)
    await until(lambda: len(world.ended()) == total + 1, "every request to finish")
    assert {decision.router for decision in world.decisions} == {"router-a", "router-b"}
    assert all(decision.outcome is Outcome.ROUTED for decision in world.decisions)
    homes: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
    for decision in world.decisions:
        homes[decision.key, decision.attempt].add((decision.worker_id or "", decision.epoch or 0))
    assert all(len(found) == 1 for found in homes.values())
    runs: Counter[tuple[str, int]] = Counter()
    for request, attempt, _ in world.agents.executed:
        runs[request, attempt] += 1
    assert set(runs.values()) == {1}
    assert len(runs) == total + 1
    assert not [order for order in world.orders if order.kind is ControlKind.CANCEL]


async def test_a_worker_that_falls_silent_loses_its_requests_to_others(world: World) -> None:
    settings = world.settings.model_copy(update={"lease_seconds": 1.5, "instance": "router-a"})
    service = Service("router", settings)
    build(settings, service)
    await service.start()
    await world.agents.store("w1", prompt(1))
    await world.ask("before", prompt(1))
    await until(lambda: world.ended() == {"before"}, "the first request to finish")
    world.agents.deaf.add("w1")
    await world.ask("lost", prompt(1))
    await until(lambda: "lost" in world.ended(), "the lost request to be finished by another")
    attempts = sorted((d.attempt, d.worker_id == "w1") for d in world.decisions if d.request_id == "lost")
    assert attempts == [(1, True), (2, False)]
    failed = [fact for fact in world.facts if fact.event is LifecycleEvent.FAILED]
    assert [(fact.attempt, fact.worker_id, fact.code) for fact in failed] == [(1, "w1", "worker_lost")]
    await service.stop()
