"""One attempt's answer on its way back: pieces in index order, coalesced, pipelined, one final piece."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from schemas.work import Response, ResponseError, Work
from services.runtime.bus import Sender
from services.runtime.errors import BadRecord, Transient
from services.runtime.logs import get_logger
from services.worker.patience import send_patiently

COALESCE_SECONDS = 0.02
COALESCE_BYTES = 512
IN_FLIGHT = 64
"""Pieces sent and not acknowledged, at most."""

_log = get_logger("worker.reply")


class Reply:
    """Sends the pieces of one attempt. Without a reply_to it swallows them.

    The first piece goes at once and is waited for, so that the order does not depend on who learns first that the
    topic exists; the others are pipelined. A reader that can't be reached costs its answer, not the request's run.
    """

    def __init__(self, sender: Sender, work: Work, later: Callable[[float, Callable[[], None]], object]) -> None:
        """``later`` calls back after some seconds, as ``loop.call_later`` does."""
        self.pieces = 0
        """Pieces handed to the sender."""
        self._sender = sender
        self._work = work
        self._later = later
        self._text: list[str] = []
        self._size = 0
        self._timer = False
        self._first: asyncio.Task[None] | None = None
        self._sends: set[asyncio.Task[None]] = set()
        self._lost = work.reply_to is None

    @property
    def lost(self) -> bool:
        """Whether nobody gets this answer (any more)."""
        return self._lost

    def write(self, text: str) -> None:
        """Add whole events to the answer."""
        if self._lost:
            return
        self._text.append(text)
        self._size += len(text)
        if self._first is None or self._size >= COALESCE_BYTES:
            self._flush()
        elif not self._timer:
            self._timer = True
            self._later(COALESCE_SECONDS, self._time_up)

    async def room(self) -> None:
        """Wait while too many pieces are unacknowledged: a slow broker slows the engine's stream, not our memory."""
        while len(self._sends) >= IN_FLIGHT:
            await asyncio.wait(self._sends, return_when=asyncio.FIRST_COMPLETED)

    async def finish(self, text: str = "", error: ResponseError | None = None) -> None:
        """Send the rest as the final piece and wait until the broker has all of them."""
        if self._lost:
            return
        chunk = "".join([*self._text, text])
        self._text.clear()
        await self._settled()
        if self.lost:
            return
        try:
            await self._send(self._piece(chunk, final=True, error=error))
        except BadRecord as problem:
            if problem.code != "record_too_large":
                self._give_up(problem)
                return
            too_large = ResponseError(
                status=502, type="server_error", code="answer_too_large",
                message=f"the answer of {len(chunk)} characters does not fit a record: stream it",
            )  # fmt: skip
            await self._swallow(self._piece("", final=True, error=too_large, index=self.pieces - 1))
        except Transient as problem:
            self._give_up(problem)

    async def abandon(self) -> None:
        """Send nothing more; the attempt ends without a final piece of ours."""
        self._lost = True
        self._text.clear()
        await self._settled()

    def _time_up(self) -> None:
        self._timer = False
        if self._text and not self._lost:
            self._flush()

    def _flush(self) -> None:
        piece = self._piece("".join(self._text))
        self._text.clear()
        self._size = 0
        task = asyncio.ensure_future(self._in_order(piece, self._first))
        if self._first is None:
            self._first = task
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    async def _in_order(self, piece: Response, first: asyncio.Task[None] | None) -> None:
        if first is not None and not first.done():
            await asyncio.wait([first])
        if not self._lost:
            await self._swallow(piece)

    async def _swallow(self, piece: Response) -> None:
        try:
            await self._send(piece)
        except (BadRecord, Transient) as problem:
            self._give_up(problem)

    async def _send(self, piece: Response) -> None:
        topic = self._work.reply_to
        if topic is None:
            return
        await send_patiently(self._sender, topic, piece, key=self._work.key)

    async def _settled(self) -> None:
        while self._sends:
            with contextlib.suppress(Exception):
                await asyncio.wait(set(self._sends))

    def _give_up(self, problem: Exception) -> None:
        self._lost = True
        _log.warning("answer is lost", request=self._work.key, attempt=self._work.attempt, error=str(problem)[:300])

    def _piece(
        self, chunk: str, *, final: bool = False, error: ResponseError | None = None, index: int | None = None
    ) -> Response:
        if index is None:
            index, self.pieces = self.pieces, self.pieces + 1
        work = self._work
        return Response(
            request_id=work.request_id, tenant=work.tenant, attempt=work.attempt, worker_id=work.worker_id,
            dp_rank=work.dp_rank, epoch=work.epoch, index=index, chunk=chunk, final=final, error=error,
        )  # fmt: skip
