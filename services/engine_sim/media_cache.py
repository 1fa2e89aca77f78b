"""What the engine remembers of media: the processor cache, by identifier, and what decoding a data: URI gave."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Lru(Generic[Key, Value]):
    """A bounded map that forgets what was not used for longest, and counts look-ups."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self.queries = 0
        self.hits = 0

    def get(self, key: Key) -> Value | None:
        """The value, which is then the last to be forgotten."""
        self.queries += 1
        if key not in self._entries:
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: Key, value: Value) -> None:
        """Remember a value."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
