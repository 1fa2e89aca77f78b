"""Takes work and runs it: its own epoch only, nothing twice, no more at once than the engine was given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from schemas.control import Control, ControlKind
from schemas.types import WorkerId
from schemas.work import Work
from services.runtime.bus import Record
from services.runtime.errors import BadRecord, Refused
from services.runtime.logs import get_logger
from services.runtime.topics import LIFECYCLE
from services.worker.attempt import Attempt, End, Tools
from services.worker.encoder_outputs import EncoderOutputs
from services.worker.facts import Facts
from services.worker.patience import send_patiently
from services.worker.remembered import Remembered
from services.worker.salts import Salts

KEEP_SECONDS = 660.0
"""Longer than the longest deadline: what is forgotten can't be asked for any more."""

Key = tuple[str, int]
Slotted = tuple[str, int, int, int | None]
"""One decision: request and attempt, and the rank and epoch it was made for. Of two only one counts in the end."""

_log = get_logger("worker.executor")


class Executor:
    """Runs the attempts of one agent."""

    def __init__(
        self, worker_id: WorkerId, tools: Tools, *, max_concurrency: int,
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
    ) -> None:  # fmt: skip
        self.worker_id = worker_id
        self.tools = tools
        self.salts = Salts(tools.clock.monotonic)
        self.epoch: int | None = None
        """The epoch whose work is run; None while there is no engine."""
        self._spawn = spawn
        self._room = asyncio.Semaphore(max_concurrency)
        self._seen: Remembered[Slotted] = Remembered(KEEP_SECONDS)
        self._cancelled: Remembered[Key] = Remembered(KEEP_SECONDS)
        self._lost: Remembered[Slotted] = Remembered(KEEP_SECONDS)
        self._attempts: dict[Slotted, Attempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, epoch: int, *, ranks: int, encoder_tokens: int = 0, frames: bool = False) -> None:
        """From now on this epoch's work is run, on an engine of so many ranks, whose caches are empty.

        ``encoder_tokens``: what each rank's encoder cache takes; 0: not known. ``frames``: it takes videos as frames.
        """
        self.epoch = epoch
        self.tools = replace(
            self.tools, ranks=ranks, frames=frames, outputs=tuple(EncoderOutputs(encoder_tokens) for _ in range(ranks))
        )

    def encoded(self, rank: int) -> list[int]:
        """Identities of media whose encoder outputs a rank surely holds, the latest used first."""
        return self.tools.outputs[rank].held if rank < len(self.tools.outputs) else []

    def caches_cleared(self, rank: int) -> None:
        """A rank dropped its caches, or may have."""
        if rank < len(self.tools.outputs):
            self.tools.outputs[rank].clear()

    @property
    def running(self) -> int:
        """Attempts in hand."""
        return len(self._tasks)

    async def take(self, record: Record) -> None:
        """Handle one record of the work topic: returns when the work has been handed on, or is none of ours.

        Raises BadRecord when it can't be read.
        """
        work = self._read(record)
        if work is None:
            return
        if not self._seen.add(_slotted(work), self._now()):
            _log.info("work came twice", request=work.key, attempt=work.attempt)
            return
        if self.epoch is not None and work.epoch > self.epoch:
            # Ours is the older agent of this name: the newer one runs it.
            _log.warning("work is for a newer agent", request=work.key, epoch=work.epoch, own_epoch=self.epoch)
            return
        await self._room.acquire()
        task = self._spawn(self._run(work), f"request {work.key}/{work.attempt}")
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def control(self, order: Control) -> None:
        """Heed a cancel: of all attempts, of one, or of one that lost to another decision (it names its worker)."""
        if order.kind is not ControlKind.CANCEL or order.request_id is None:
            return
        if order.worker_id is not None and order.worker_id != self.worker_id:
            return
        if order.worker_id is None:
            self._cancelled.add((order.key, order.attempt), self._now())
        else:
            self._lost.add((order.key, order.attempt, order.dp_rank or 0, order.epoch), self._now())
        for attempt in list(self._attempts.values()):
            if (by := self._already_ended(attempt.work)) is not None:
                attempt.end(by)

    async def finish(self, seconds: float) -> None:
        """Let what runs end by itself for a while, then end it."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for attempt in list(self._attempts.values()):
            attempt.end(End.SHUTDOWN)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5.0)

    def _read(self, record: Record) -> Work | None:
        if record.value is None:
            return None
        try:
            work = Work.from_bytes(record.value)
        except ValueError as error:
            raise BadRecord("invalid_message", f"work record: {error}") from None
        if work.worker_id != self.worker_id:
            raise BadRecord(
                "wrong_worker", f"work for {work.worker_id} stands in the topic of {self.worker_id}"
            )
        return work

    async def _run(self, work: Work) -> None:
        if work.epoch != self.epoch:
            await self._refuse(work)
            return
        key = _slotted(work)
        attempt = self._attempts[key] = Attempt(work, self.tools)
        if (by := self._already_ended(work)) is not None:
            attempt.end(by)
        self.salts.begin(work.cache_salt)
        try:
            await attempt.run()
        finally:
            self.salts.end(work.cache_salt)
            del self._attempts[key]

    def _already_ended(self, work: Work) -> End | None:
        now = self._now()
        if any(self._cancelled.has((work.key, attempt), now) for attempt in (0, work.attempt)):
            return End.CLIENT
        if self._lost.has(_slotted(work), now):
            return End.LOST
        return None

    async def _refuse(self, work: Work) -> None:
        found = "no engine" if self.epoch is None else f"epoch {self.epoch}"
        refused = Refused(
            503, f"worker {self.worker_id} has {found}, the work is for epoch {work.epoch}", type="server_error",
            code="wrong_epoch",
        )
        fact = Facts(work).refused(self.tools.clock.now_ms(), refused, retryable=True)
        await send_patiently(self.tools.sender, LIFECYCLE.name, fact, key=fact.key)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()

    def _now(self) -> float:
        return self.tools.clock.monotonic()


def _slotted(work: Work) -> Slotted:
    return work.key, work.attempt, work.dp_rank, work.epoch
