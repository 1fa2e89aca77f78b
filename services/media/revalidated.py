"""What was learnt of media by URL, kept as long as their servers say that they have not changed. Pure.

A value is *fresh* for the seconds its server gave (``Cache-Control: max-age``); after that its validators (ETag,
Last-Modified) go with the next request, and an answer without a body (304) keeps it. Without validators it goes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from services.media.fetch import Validators
from services.runtime.clock import Clock
from services.runtime.metrics import MEDIA_IDENTITIES_REMEMBERED

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Known(Generic[V]):
    """A remembered value. Not fresh: ask its server with the validators whether it still holds."""

    value: V
    validators: Validators
    fresh: bool


@dataclass(frozen=True, slots=True)
class _Entry(Generic[V]):
    value: V
    validators: Validators
    size: int
    kept_until: float
    fresh_until: float


class Revalidated(Generic[V]):
    """A cache bounded in entries, bytes and age. ``seconds`` is the longest a value is kept, however often confirmed:
    the bytes it names are kept by others for a while only.
    """

    def __init__(self, clock: Clock, *, entries: int, size_limit: int, seconds: float) -> None:
        self._clock = clock
        self._entries = entries
        self._size_limit = size_limit
        self._seconds = seconds
        self._size = 0
        self._known: OrderedDict[Hashable, _Entry[V]] = OrderedDict()

    def get(self, key: Hashable) -> Known[V] | None:
        """What is known and may still hold."""
        entry = self._known.get(key)
        now = self._clock.monotonic()
        if entry is None or entry.kept_until <= now:
            MEDIA_IDENTITIES_REMEMBERED.labels("miss").inc()
            if entry is not None:
                self._forget(key)
            return None
        fresh = entry.fresh_until > now
        if not fresh and not _can_ask(entry.validators):
            MEDIA_IDENTITIES_REMEMBERED.labels("miss").inc()
            self._forget(key)
            return None
        MEDIA_IDENTITIES_REMEMBERED.labels("fresh" if fresh else "asked").inc()
        self._known.move_to_end(key)
        return Known(entry.value, entry.validators, fresh)

    def put(self, key: Hashable, value: V, validators: Validators, max_age: float, size: int) -> None:
        """Remember a value of ``size`` bytes."""
        if not (max_age > 0 or _can_ask(validators)):
            return
        now = self._clock.monotonic()
        self._forget(key)
        self._known[key] = _Entry(value, validators, size, now + self._seconds, now + max_age)
        self._size += size
        while self._known and (len(self._known) > self._entries or self._size > self._size_limit):
            self._forget(next(iter(self._known)))

    def confirm(self, key: Hashable, max_age: float) -> None:
        """The server said that nothing has changed."""
        entry = self._known.get(key)
        if entry is not None:
            self._known[key] = replace(entry, fresh_until=self._clock.monotonic() + max_age)

    def __len__(self) -> int:
        """Values remembered."""
        return len(self._known)

    def _forget(self, key: Hashable) -> None:
        entry = self._known.pop(key, None)
        if entry is not None:
            self._size -= entry.size


def _can_ask(validators: Validators) -> bool:
    return bool(validators.etag or validators.last_modified)
