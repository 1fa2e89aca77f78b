"""What the engine keeps of its vision encoder's outputs. Pure; after vLLM's encoder cache manager.

An output is held by the requests that still have to compute its tokens. When the last of them has, it stays until room
is needed for another; the one that was let go first goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class EncoderCache:
    """Encoder outputs by the media's identifiers, up to a number of prompt tokens (vLLM: embeddings)."""

    def __init__(self, capacity_tokens: int) -> None:
        if capacity_tokens < 0:
            raise ValueError(f"the encoder cache takes {capacity_tokens} tokens, expected 0 or more")
        self.capacity = capacity_tokens
        self._tokens: dict[str, int] = {}
        self._holders: dict[str, set[Hashable]] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._used = 0

    def __contains__(self, identifier: object) -> bool:
        return identifier in self._tokens

    def grow(self, tokens: int) -> None:
        """Take media of so many tokens: an engine sizes its cache at start for the largest its model can meet."""
        self.capacity = max(self.capacity, tokens)

    def use(self, request: Hashable, identifier: str) -> bool:
        """Hold an output for a request, if it is at hand."""
        if identifier not in self._tokens:
            return False
        self._idle.pop(identifier, None)
        self._holders[identifier].add(request)
        return True

    def make_room(self, tokens: int, planned: int = 0) -> bool:
        """Whether so many tokens fit beside what is held and ``planned``; what nobody holds gives way, oldest first."""
        needed = tokens + planned
        idle = sum(self._tokens[identifier] for identifier in self._idle)
        if self._used - idle + needed > self.capacity:
            return False
        while self._used + needed > self.capacity:
            identifier, _ = self._idle.popitem(last=False)
            self._used -= self._tokens.pop(identifier)
            del self._holders[identifier]
        return True

    def take(self, request: Hashable, identifier: str, tokens: int) -> None:
        """A medium is encoded for a request. Room was made before."""
        self._tokens[identifier] = tokens
        self._holders[identifier] = {request}
        self._used += tokens

    def release(self, request: Hashable, identifier: str) -> None:
        """A request has computed the medium's tokens, or never will. Doing it twice is harmless."""
        holders = self._holders.get(identifier)
        if holders is None or request not in holders:
            return
        holders.discard(request)
        if not holders:
            self._idle[identifier] = None
