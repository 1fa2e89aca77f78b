"""The engine loop of one data-parallel rank: steps in virtual time, events after each, tokens to who waits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from services.engine_sim.events import KvEvent
from services.engine_sim.request import EngineRequest
from services.engine_sim.scheduler import Output, Scheduler
from services.engine_sim.timing import Timing
from services.runtime.clock import Clock

Sleep = Callable[[float], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Ticket:
    """A request's way back. A stream gets every token as it is generated, anyone else only the last."""

    request: EngineRequest
    stream: bool
    outputs: asyncio.Queue[Output] = field(default_factory=asyncio.Queue)


class EngineCore:
    """Runs one scheduler. ``speedup`` divides the time of every step; infinite means no waiting at all."""

    def __init__(
        self,
        scheduler: Scheduler,
        timing: Timing,
        publish: Callable[[float, list[KvEvent]], None],
        clock: Clock,
        *,
        speedup: float = 1.0,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        if not speedup > 0:
            raise ValueError(f"speedup is {speedup}, expected more than 0 (inf: no waiting)")
        self.scheduler = scheduler
        self.timing = timing
        self.speedup = speedup
        self.steps = 0
        self.busy_seconds = 0.0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.encoded_tokens = 0
        self._publish = publish
        self._clock = clock
        self._sleep = sleep
        self._tickets: dict[EngineRequest, Ticket] = {}
        self._aborts: list[EngineRequest] = []
        self._wake = asyncio.Event()
        self._due = 0.0

    @property
    def in_flight(self) -> int:
        """Requests that are running or waiting."""
        return len(self.scheduler.running) + len(self.scheduler.waiting)

    def submit(self, request: EngineRequest, *, stream: bool = False) -> Ticket:
        """Queue a request. Raises ValueError if it could never run."""
        self.scheduler.add(request)
        ticket = Ticket(request, stream)
        self._tickets[request] = ticket
        self._wake.set()
        return ticket

    def abort(self, ticket: Ticket) -> None:
        """Drop a request between two steps, as vLLM does when its client goes away. Finished ones are left alone."""
        if self._tickets.pop(ticket.request, None) is not None:
            self._aborts.append(ticket.request)
            self._wake.set()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False while any is held. Announced with the next step."""
        return self.scheduler.cache.reset()

    async def run(self) -> None:
        """Step while there is work, sleep while there is none. Ends only by being cancelled."""
        while True:
            self._drop_aborted()
            if not self.scheduler.has_work:
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._step()

    async def _step(self) -> None:
        step = self.scheduler.schedule()
        seconds = self.timing.step_seconds(
            prefill_tokens=step.prefill_tokens, decode_sequences=step.decode_sequences, vision_tokens=step.vision_tokens
        )
        self.steps += 1
        self.encoded_tokens += step.vision_tokens
        self.busy_seconds += seconds
        await self._pass(seconds)
        outputs = self.scheduler.complete(step)
        events = self.scheduler.cache.take_events()
        if events:
            self._publish(self._clock.now_ms() / 1000, events)
        for output in outputs:
            self._deliver(output)

    async def _pass(self, seconds: float) -> None:
        # Steps are laid end to end on the clock, so that late wake-ups do not add up.
        if math.isinf(self.speedup):
            await self._sleep(0)
            return
        now = self._clock.monotonic()
        self._due = max(now, self._due) + seconds / self.speedup
        await self._sleep(max(0.0, self._due - now))

    def _drop_aborted(self) -> None:
        for request in self._aborts:
            self.scheduler.abort(request)
        self._aborts.clear()

    def _deliver(self, output: Output) -> None:
        self.generated_tokens += 1
        if output.request.output_tokens == 1:
            self.prompt_tokens += output.request.prompt_tokens
        ticket = self._tickets.get(output.request)
        if ticket is None:
            return
        if output.finish_reason is not None:
            del self._tickets[output.request]
        if ticket.stream or output.finish_reason is not None:
            ticket.outputs.put_nowait(output)
