"""How many requests are let in: by number, by bytes, and by whether they have a chance. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from services.runtime.errors import Refused

ALWAYS_ADMITTED = 8
"""So many are let in whatever the outlook: somebody has to find out that it got better."""

REMEMBERED_SECONDS = 30.0
_REMEMBERED_ANSWERS = 256
_RETRY_SECONDS = 2


class TooBusy(Refused):
    """429, with the seconds after which trying again makes sense."""

    def __init__(self, message: str, code: str, retry_after: int = _RETRY_SECONDS) -> None:
        super().__init__(429, message, type="rate_limit_error", code=code)
        self.retry_after = retry_after


class Admission:
    """Counts requests in flight and the bytes of bodies being read; knows how long first answers took lately."""

    def __init__(self, max_in_flight: int, max_bytes: int) -> None:
        self._max_in_flight = max_in_flight
        self._max_bytes = max_bytes
        self._waiting: OrderedDict[str, float] = OrderedDict()
        self._answered: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED_ANSWERS)
        self.in_flight = 0
        self.bytes = 0

    def check_room(self) -> None:
        """Raise TooBusy when nobody can be let in. Who sends a body takes no room yet: it may be sent for ever."""
        if self.in_flight >= self._max_in_flight:
            raise TooBusy(
                f"{self.in_flight} requests are in flight, the limit is {self._max_in_flight} "
                "(KVROUTE_GATEWAY_MAX_IN_FLIGHT): try again later", "too_many_requests",
            )  # fmt: skip

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let one in until it is done. Raises TooBusy."""
        self.check_room()
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def take_bytes(self, size: int) -> None:
        """Count bytes of a body. Raises TooBusy."""
        if self.bytes + size > self._max_bytes:
            raise TooBusy(f"bodies of {self.bytes} bytes are being read: try again later", "too_many_bytes")
        self.bytes += size

    def give_back(self, size: int) -> None:
        """A body went on to Kafka, or nowhere."""
        self.bytes -= size

    def check_outlook(self, seconds_left: float, now: float) -> None:
        """Raise TooBusy when by all that is seen no answer can begin in time."""
        if len(self._waiting) < ALWAYS_ADMITTED:
            return
        expected = self.outlook(now)
        if expected > seconds_left:
            raise TooBusy(
                f"answers begin after {expected:.1f} s at present, the request has {seconds_left:.1f} s",
                "deadline_hopeless", max(_RETRY_SECONDS, min(60, int(expected / 2))),
            )  # fmt: skip

    def outlook(self, now: float) -> float:
        """Seconds until an answer begins: the median of the last half minute, or the longest wait if nothing came."""
        while self._answered and self._answered[0][0] < now - REMEMBERED_SECONDS:
            self._answered.popleft()
        if self._answered:
            return median(seconds for _, seconds in self._answered)
        return now - next(iter(self._waiting.values())) if self._waiting else 0.0

    def published(self, key: str, now: float) -> None:
        """A request waits for its first piece."""
        self._waiting[key] = now

    def answered(self, key: str, now: float) -> None:
        """Its first piece came."""
        began = self._waiting.pop(key, None)
        if began is not None:
            self._answered.append((now, now - began))

    def gone(self, key: str) -> None:
        """It ended without one."""
        self._waiting.pop(key, None)
