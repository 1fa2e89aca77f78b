"""Which of the pieces that come back are the answer. Pure.

A request may have several attempts, and an attempt may by accident run on two workers. The answer binds to the source
(attempt, worker, epoch, rank) whose piece is forwarded first. Before that a higher attempt takes over; after that it
ends the answer with an error, because output of two attempts must not be mixed. Duplicates are dropped, pieces that
come early wait for those before them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.work import LOST_INDEX, Response, ResponseError

EARLY_PIECES = 256
"""How many pieces may wait for one before them."""

CANCELLED_STATUS = 499


@dataclass(frozen=True, slots=True)
class Source:
    """Who answers."""

    attempt: int
    worker_id: str | None
    epoch: int | None
    dp_rank: int = 0

    @classmethod
    def of(cls, piece: Response) -> Source:
        """The source of a piece."""
        return cls(piece.attempt, piece.worker_id, piece.epoch, piece.dp_rank)


@dataclass(frozen=True, slots=True)
class Broken:
    """The answer can't go on. It is the last thing a client hears."""

    error: ResponseError


@dataclass
class Binding:
    """The pieces of one request's answer. ``take`` returns what is to be forwarded now, in order."""

    bound: Source | None = None
    done: bool = False
    _attempt: int = 0
    _next: int = 0
    _early: dict[Source, dict[int, Response]] = field(default_factory=dict)

    @property
    def waits_for_piece(self) -> bool:
        """Whether pieces of the bound source wait for one that has not come."""
        return not self.done and self.bound is not None and bool(self._early.get(self.bound))

    def take(self, piece: Response) -> list[Response | Broken]:
        """Take a piece in any order."""
        source = Source.of(piece)
        if self.done or piece.attempt < self._attempt or self._is_a_losers_farewell(piece):
            return []
        if piece.attempt > self._attempt:
            if self.bound is not None:
                return self.break_off("attempt_superseded", f"attempt {piece.attempt} began after output was sent")
            self._attempt = piece.attempt
            self._early.clear()
        if self.bound is not None and source != self.bound:
            return []
        if piece.index == LOST_INDEX:
            return []  # for readers that know no leases; the gateway sees a loss itself and waits for what is under way
        if self.bound is not None and piece.index < self._next:
            return []
        early = self._early.setdefault(source, {})
        early.setdefault(piece.index, piece)
        if len(early) > EARLY_PIECES:
            return self.break_off("pieces_missing", f"more than {EARLY_PIECES} pieces came before piece {self._next}")
        return self._in_order(source, early)

    def source_ended(self, source: Source) -> list[Response | Broken]:
        """The worker's life is over: nothing more will come of it."""
        if self.done:
            return []
        if self.bound == source:
            return self.break_off("worker_lost", f"worker {source.worker_id} ended while it answered")
        self._early.pop(source, None)
        return []

    def break_off(self, code: str, message: str) -> list[Response | Broken]:
        """End the answer with an error. Nothing is forwarded after it."""
        if self.done:
            return []
        self.done = True
        self._early.clear()
        return [Broken(ResponseError(status=502, type="server_error", message=message, code=code))]

    def _in_order(self, source: Source, early: dict[int, Response]) -> list[Response | Broken]:
        ready: list[Response | Broken] = []
        while (piece := early.pop(self._next, None)) is not None:
            ready.append(piece)
            self._next += 1
            if piece.final:
                self.done = True
                break
        if ready:
            self.bound = source
            self._early = {} if self.done or not early else {source: early}
        return ready

    def _is_a_losers_farewell(self, piece: Response) -> bool:
        """A worker that was told to let go, while another one's answer is still to come.

        A client that cancels has gone; a stage that ends a cancelled request answers for no worker.
        """
        cancelled = piece.error is not None and piece.error.status == CANCELLED_STATUS
        return cancelled and piece.worker_id is not None and self.bound != Source.of(piece)
