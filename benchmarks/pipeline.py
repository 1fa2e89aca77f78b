"""The whole pipeline: requests a second and the latency it adds, beside bare hops on the same broker in the same run.

*Added* is what a client waits more than a client of the engine itself: the time through the gateway minus the median
time of the same kind of request posted to an engine directly. The floor is what five bare hops take.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.deployment import ENGINES, Deployment
from benchmarks.hops import floor
from benchmarks.load import Answer, drive, prompts
from benchmarks.measure import Row, Spread, quantile

WARM_UP = 64
WARM_UP_DEPLOYMENT = 1000
"""A broker's JVM needs some ten thousand requests until it runs as it will."""

IDLE_SECONDS = 6.0
BYTES_A_TOKEN = 5.3
"""Size of a body of ``load.prompts``, by token."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: prompt lengths, requests by concurrency, and how often."""

    tokens: tuple[int, ...] = (2048, 8192)
    requests: Mapping[int, int] = field(default_factory=lambda: {1: 60, 16: 400})
    runs: int = 3
    warm_up: int = WARM_UP_DEPLOYMENT


QUICK = Plan(tokens=(2048,), requests={1: 20, 16: 100}, runs=1, warm_up=WARM_UP)


def rows(plan: Plan | None = None) -> Iterator[Row]:
    """All rows, after one deployment was started, measured and stopped."""
    yield from asyncio.run(_measure(plan or Plan()))


async def _measure(plan: Plan) -> list[Row]:
    async with Deployment() as deployment:
        await drive(deployment.gateway_url, deployment.model, prompts(plan.tokens[0], plan.warm_up, seed=3), 16)
        result = await _idle(deployment)
        for tokens in plan.tokens:
            direct = await _direct(deployment, tokens)
            for concurrency, count in plan.requests.items():
                result += await _case(deployment, tokens, concurrency, count, plan.runs, direct)
    return result


async def _idle(deployment: Deployment) -> list[Row]:
    """What the parts use while nobody asks anything: heartbeats, polls, leases."""
    await asyncio.sleep(IDLE_SECONDS / 2)
    before = deployment.cpu_seconds()
    await asyncio.sleep(IDLE_SECONDS)
    after = deployment.cpu_seconds()
    return [
        Row(f"CPU idle: {name}", "ms/s", Spread.of([(after[name] - before[name]) / IDLE_SECONDS * 1e3]))
        for name in after
    ]


async def _direct(deployment: Deployment, tokens: int) -> float:
    """Median seconds of a request posted to an engine itself, without kvroute."""
    chats = prompts(tokens, 60, seed=1)
    answers, _ = await drive(deployment.engine_urls[-1], deployment.model, chats, concurrency=1)
    return statistics.median(answer.seconds for answer in answers[20:])


async def _case(
    deployment: Deployment, tokens: int, concurrency: int, count: int, runs: int, direct: float
) -> list[Row]:
    await drive(deployment.gateway_url, deployment.model, prompts(tokens, WARM_UP, seed=2), concurrency)
    rates, floor_rates = [], []
    medians, tails, floor_medians, floor_tails = [], [], [], []
    answers: list[Answer] = []
    cpu: dict[str, float] = {}
    for run in range(runs):
        bare = await floor(
            deployment.settings, record_bytes=int(tokens * BYTES_A_TOKEN), concurrency=concurrency, chains=count
        )
        floor_rates.append(bare.per_second)
        floor_medians.append(quantile(bare.seconds, 0.5) * 1e3)
        floor_tails.append(quantile(bare.seconds, 0.99) * 1e3)
        before = deployment.cpu_seconds()
        chats = list(prompts(tokens, count, seed=100 * tokens + 10 * concurrency + run))
        answers, spent = await drive(deployment.gateway_url, deployment.model, chats, concurrency)
        after = deployment.cpu_seconds()
        rates.append(len(answers) / spent)
        added = [answer.seconds - direct for answer in answers]
        medians.append(quantile(added, 0.5) * 1e3)
        tails.append(quantile(added, 0.99) * 1e3)
        cpu = {name: (after[name] - before[name]) / len(answers) * 1e3 for name in after}
        cpu["all"] = sum(cpu.values())
    case = f"{tokens:,} tokens, concurrency {concurrency}"
    hops = f"bare hops, {deployment.broker_name}"
    about = {
        "direct_ms": direct * 1e3,
        "prompt_tokens": statistics.median(answer.prompt_tokens for answer in answers),
        "cached_share": sum(a.cached_tokens for a in answers) / sum(a.prompt_tokens for a in answers),
        "engines": float(ENGINES),
    }
    return [
        Row(f"requests, {case}", "1/s", Spread.of(rates), Spread.of(floor_rates), hops, about),
        Row(f"added p50, {case}", "ms", Spread.of(medians), Spread.of(floor_medians), hops),
        Row(f"added p99, {case}", "ms", Spread.of(tails), Spread.of(floor_tails), hops),
        *(
            Row(f"CPU a request: {name}, {case}", "ms", Spread.of([milliseconds]))
            for name, milliseconds in cpu.items()
        ),
    ]
