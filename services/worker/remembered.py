"""A set that forgets: what happened in the last minutes, oldest out first. Pure: the time comes in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Remembered(Generic[K]):
    """Keys seen within the last ``keep_seconds``."""

    def __init__(self, keep_seconds: float) -> None:
        self._keep = keep_seconds
        self._until: OrderedDict[K, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, key: K, now: float) -> bool:
        """Remember a key from now on; whether it is new."""
        self._forget(now)
        new = key not in self._until
        self._until[key] = now + self._keep
        self._until.move_to_end(key)
        return new

    def has(self, key: K, now: float) -> bool:
        """Whether the key was seen."""
        self._forget(now)
        return key in self._until

    def _forget(self, now: float) -> None:
        while self._until:
            key, until = next(iter(self._until.items()))
            if until > now:
                return
            del self._until[key]
