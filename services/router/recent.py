"""Keys remembered for a while: two generations, the older one dropped when the newer is old enough."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Recent(Generic[K]):
    """A set whose members stay at least ``keep_ms`` and at most twice that."""

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms
        self._young: set[K] = set()
        self._old: set[K] = set()
        self._since_ms: int | None = None

    def __contains__(self, key: K) -> bool:
        """Whether the key is remembered."""
        return key in self._young or key in self._old

    def __len__(self) -> int:
        """Keys remembered."""
        return len(self._young | self._old)

    def add(self, key: K, now_ms: int) -> None:
        """Remember a key from now on."""
        self.forget(now_ms)
        self._young.add(key)

    def forget(self, now_ms: int) -> None:
        """Let go of what is old."""
        if self._since_ms is None:
            self._since_ms = now_ms
        elif now_ms - self._since_ms >= self._keep_ms:
            overdue = now_ms - self._since_ms >= 2 * self._keep_ms
            self._old = set() if overdue else self._young
            self._young = set()
            self._since_ms = now_ms
