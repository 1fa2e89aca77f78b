"""The engine loop: virtual time, what is delivered, aborts, idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.engine_sim.core import EngineCore
from services.engine_sim.events import KvEvent
from services.engine_sim.request import MediaSpan
from services.engine_sim.timing import Timing
from tests.fakes.clock import FakeClock
from tests.unit.engine_sim.engine import prompt, request, scheduler, stored_tokens

TIMING = Timing(
    prefill_tokens_per_second=10.0,
    vision_tokens_per_second=2.0,
    decode_step_seconds=1.0,
    decode_sequence_seconds=0.25,
    step_overhead_seconds=0.5,
)


class Bench:
    """A core on a clock that only its own sleeping moves."""

    def __init__(self, speedup: float = 1.0) -> None:
        self.clock = FakeClock()
        self.published: list[list[KvEvent]] = []
        self.slept: list[float] = []
        self.core = EngineCore(
            scheduler(), TIMING, lambda _, events: self.published.append(events), self.clock,
            speedup=speedup, sleep=self.sleep,
        )  # fmt: skip

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 9))
        self.clock.advance(seconds)
        await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[EngineCore]:
        loop = asyncio.get_running_loop().create_task(self.core.run())
        yield self.core
        loop.cancel()


def test_a_step_takes_as_long_as_all_it_does() -> None:
    assert TIMING.step_seconds(prefill_tokens=20, decode_sequences=0, vision_tokens=0) == 2.5
    assert TIMING.step_seconds(prefill_tokens=0, decode_sequences=4, vision_tokens=0) == 2.5
    assert TIMING.step_seconds(prefill_tokens=10, decode_sequences=1, vision_tokens=4) == 4.75


@pytest.mark.parametrize("wrong", [{"prefill_tokens_per_second": 0.0}, {"decode_step_seconds": -1.0}])
def test_rates_and_times_must_make_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Timing(**wrong)


async def test_prefill_then_decode_in_virtual_time() -> None:
    bench = Bench()
    async with bench.running() as core:
        ticket = core.submit(request(prompt(0, 10), max_tokens=3))
        await ticket.outputs.get()
    assert bench.slept == [1.5, 1.75, 1.75]
    assert core.busy_seconds == 5.0


async def test_media_are_encoded_at_their_own_rate() -> None:
    bench = Bench()
    async with bench.running() as core:
        ticket = core.submit(request(prompt(0, 10), media=[MediaSpan("image", "A", 0, 4)]))
        await ticket.outputs.get()
    assert bench.slept == [3.5]


async def test_speedup_divides_the_time_and_infinity_leaves_none() -> None:
    for speedup, first in ((10.0, 0.15), (float("inf"), 0.0)):
        bench = Bench(speedup)
        async with bench.running() as core:
            await core.submit(request(prompt(0, 10))).outputs.get()
        assert bench.slept == [first]
    with pytest.raises(ValueError, match="speedup is 0"):
        Bench(0)


async def test_a_stream_gets_every_token_and_others_only_the_last() -> None:
    bench = Bench()
    async with bench.running() as core:
        streamed = core.submit(request(prompt(0, 4), "s", max_tokens=3), stream=True)
        plain = core.submit(request(prompt(9, 4), "p", max_tokens=3))
        last = await plain.outputs.get()
    assert [streamed.outputs.get_nowait().token_id for _ in range(3)] == [9000, 9001, 9002]
    assert (last.token_id, last.finish_reason, plain.outputs.qsize()) == (9002, "length", 0)


async def test_events_are_published_before_the_answer_is_given() -> None:
    bench = Bench()
    async with bench.running() as core:
        await core.submit(request(prompt(0, 9))).outputs.get()
        assert [stored_tokens(events) for events in bench.published] == [[prompt(0, 8)]]


async def test_an_aborted_request_is_gone_after_the_step_and_its_blocks_are_free() -> None:
    bench = Bench()
    async with bench.running() as core:
        ticket = core.submit(request(prompt(0, 9), max_tokens=1000), stream=True)
        await ticket.outputs.get()
        assert core.reset_prefix_cache() is False
        core.abort(ticket)
        core.abort(ticket)
        other = core.submit(request(prompt(50, 4)))
        await other.outputs.get()
        assert core.in_flight == 0
        assert core.reset_prefix_cache() is True
    assert ticket.request.finish_reason == "abort"


async def test_an_idle_engine_waits_and_counts_no_time() -> None:
    bench = Bench()
    async with bench.running() as core:
        await core.submit(request(prompt(0, 10))).outputs.get()
        bench.clock.advance(100)
        await core.submit(request(prompt(50, 10))).outputs.get()
    assert bench.slept == [1.5, 1.5]
    assert (core.steps, core.prompt_tokens, core.generated_tokens) == (2, 20, 2)
