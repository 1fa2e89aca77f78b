"""What ``control`` says about requests: who was cancelled, remembered for 10 minutes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from schemas.control import Control, ControlKind
from services.runtime.bus import Record
from services.runtime.clock import Clock
from services.runtime.errors import BadRecord
from services.runtime.logs import get_logger

KEEP_SECONDS = 600.0
_ALL_ATTEMPTS = 0
_log = get_logger("runtime.cancellations")


class Cancellations:
    """A set of cancelled (request, attempt) pairs that forgets by itself. Fed with the records of ``control``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cancelled: OrderedDict[tuple[str, int], float] = OrderedDict()
        self._callbacks: list[Callable[[Control], None]] = []

    def is_cancelled(self, key: str, attempt: int = _ALL_ATTEMPTS) -> bool:
        """Whether the request (``schemas.types.request_key``) or this attempt of it was cancelled."""
        self._forget()
        return (key, _ALL_ATTEMPTS) in self._cancelled or (key, attempt) in self._cancelled

    def on_control(self, callback: Callable[[Control], None]) -> None:
        """Call back for every order of any kind, in the order they were given."""
        self._callbacks.append(callback)

    def apply(self, record: Record) -> None:
        """Take one record of ``control``. Raises BadRecord when it can't be read."""
        if record.value is None:
            return
        try:
            order = Control.from_bytes(record.value)
        except ValueError as error:
            raise BadRecord("invalid_message", f"control record: {error}") from None
        self.take(order)

    def take(self, order: Control) -> None:
        """Take one order."""
        if order.kind is ControlKind.CANCEL and order.request_id is not None:
            pair = (order.key, order.attempt)
            self._cancelled[pair] = self._clock.monotonic() + KEEP_SECONDS
            self._cancelled.move_to_end(pair)
            self._forget()
        for callback in self._callbacks:
            try:
                callback(order)
            except Exception:
                _log.exception("control callback failed", kind=order.kind.value)

    def __len__(self) -> int:
        """How many cancellations are remembered."""
        return len(self._cancelled)

    def _forget(self) -> None:
        now = self._clock.monotonic()
        while self._cancelled:
            pair, until = next(iter(self._cancelled.items()))
            if until > now:
                return
            del self._cancelled[pair]
