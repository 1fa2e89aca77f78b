"""The requests that wait for answers here, and those that had theirs."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from schemas.work import Response
from services.gateway.binding import Binding, Broken, Source
from services.gateway.intake import Asked
from services.runtime.errors import Refused

FINISHED_SECONDS = 3600.0
"""How long an id stays taken after its answer: within an hour the same id is the same request."""

_FINISHED_MOST = 100_000
_QUEUED_BYTES = 8 << 20
_GAP_SECONDS = 5.0
_LAST_PIECES_SECONDS = 2.0


class Pending:
    """One request: pieces come in from Kafka, its HTTP handler takes them out in order."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.binding = Binding()
        self.last_piece: float | None = None
        self._lost_at: float | None = None
        self._queue: asyncio.Queue[Response | Broken] = asyncio.Queue()
        self._queued_bytes = 0

    @property
    def answered(self) -> bool:
        """Whether a first piece was forwarded."""
        return self.last_piece is not None

    def take(self, piece: Response, now: float) -> None:
        """A piece from Kafka."""
        ready = self.binding.take(piece)
        if ready:
            self.last_piece = now
        self._forward(ready)
        if self._queued_bytes > _QUEUED_BYTES and not self.binding.done:
            self._forward(self.binding.break_off("client_too_slow", "the client reads too slowly"))

    def check(self, now: float, ended: Callable[[Source, float, float], bool]) -> None:
        """Break the answer off when its worker's life is over or a piece is missing for too long."""
        source, last = self.binding.bound, self.last_piece
        if source is None or last is None or self.binding.done:
            return
        if ended(source, last, now):
            # Its last pieces may still be on their way: they come through another topic than the news of its end.
            self._lost_at = now if self._lost_at is None else self._lost_at
            if now - max(self._lost_at, last) >= _LAST_PIECES_SECONDS:
                self._forward(self.binding.source_ended(source))
        elif self.binding.waits_for_piece and now - last > _GAP_SECONDS:
            self._forward(self.binding.break_off("pieces_missing", "a piece of the answer did not come"))

    async def next(self) -> Response | Broken:
        """The next piece in order."""
        piece = await self._queue.get()
        if isinstance(piece, Response):
            self._queued_bytes -= len(piece.chunk)
        return piece

    def _forward(self, ready: list[Response | Broken]) -> None:
        for piece in ready:
            if isinstance(piece, Response):
                self._queued_bytes += len(piece.chunk)
            self._queue.put_nowait(piece)


class Register:
    """Requests by key. An id that is in flight or was answered within the hour is taken."""

    def __init__(self) -> None:
        self._pending: dict[str, Pending] = {}
        self._finished: OrderedDict[str, float] = OrderedDict()
        self._empty = asyncio.Event()
        self._empty.set()

    async def wait_empty(self) -> None:
        """Return when nothing is in flight."""
        await self._empty.wait()

    def __len__(self) -> int:
        """Requests in flight."""
        return len(self._pending)

    def add(self, pending: Pending, now: float) -> None:
        """Wait for a request's answer. Raises Refused (409) when its id is taken."""
        key = pending.asked.key
        self._forget(now)
        if key in self._pending or key in self._finished:
            state = "in flight" if key in self._pending else "already answered"
            raise Refused(
                409, f"the request id {pending.asked.request_id} is {state}: every request needs an id of its own",
                code="duplicate_request_id",
            )  # fmt: skip
        self._pending[key] = pending
        self._empty.clear()

    def get(self, key: str) -> Pending | None:
        """The request a piece belongs to."""
        return self._pending.get(key)

    def all(self) -> list[Pending]:
        """Requests in flight."""
        return list(self._pending.values())

    def remove(self, pending: Pending, now: float, *, published: bool) -> None:
        """It is over. One that never reached Kafka may be tried again under its id."""
        key = pending.asked.key
        self._pending.pop(key, None)
        if not self._pending:
            self._empty.set()
        if published:
            self._finished[key] = now
            self._finished.move_to_end(key)
            self._forget(now)

    def _forget(self, now: float) -> None:
        while self._finished:
            key, since = next(iter(self._finished.items()))
            if since > now - FINISHED_SECONDS and len(self._finished) <= _FINISHED_MOST:
                return
            del self._finished[key]
