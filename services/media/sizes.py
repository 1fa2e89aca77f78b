"""Sizes of images by URL: remembered, and fetched once by however many ask at the same time.

Only url identity may use this: it states that what a URL serves never changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from xxhash import xxh3_128_digest

from services.kv.reason import Reason
from services.media.fetch import Measured
from services.media.flights import Flights
from services.media.unusable import Unusable
from services.runtime.clock import Clock
from services.runtime.metrics import MEDIA_SIZES_REMEMBERED

FAILED_SECONDS = 5.0
"""How long a URL that could not be fetched is not tried again."""


class RememberedSizes:
    """A bounded cache before ``Fetcher.size``. What can't be an image stays so; a failed fetch is tried again soon."""

    def __init__(
        self, fetch: Callable[[str], Coroutine[Any, Any, Measured]], clock: Clock, *, entries: int, seconds: float
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._entries = entries
        self._seconds = seconds
        self._known: OrderedDict[bytes, tuple[float, Measured | Unusable]] = OrderedDict()
        self._flights: Flights[bytes, Measured] = Flights()

    async def of(self, url: str) -> Measured:
        """The size of the image a URL serves. Raises Unusable or Fenced."""
        key = xxh3_128_digest(url.encode("utf-8", "surrogatepass"))
        known = self._known.get(key)
        if known is not None and known[0] > self._clock.monotonic():
            self._known.move_to_end(key)
            MEDIA_SIZES_REMEMBERED.labels("hit").inc()
            if isinstance(known[1], Unusable):
                raise known[1].again()
            return known[1]
        MEDIA_SIZES_REMEMBERED.labels("miss").inc()
        return await self._flights.share(key, lambda: self._learn(key, url))

    async def close(self) -> None:
        """Give up what is being fetched."""
        await self._flights.close()

    async def _learn(self, key: bytes, url: str) -> Measured:
        try:
            measured = await self._fetch(url)
        except Unusable as error:
            passing = error.reason in (Reason.FETCH_FAILED, Reason.BUDGET_EXCEEDED)
            self._remember(key, error.again(), FAILED_SECONDS if passing else self._seconds)
            raise
        self._remember(key, measured, self._seconds)
        return measured

    def _remember(self, key: bytes, what: Measured | Unusable, seconds: float) -> None:
        self._known[key] = (self._clock.monotonic() + seconds, what)
        self._known.move_to_end(key)
        while len(self._known) > self._entries:
            self._known.popitem(last=False)
