"""Which media's encoder outputs an engine surely still holds, as far as its agent can tell from what it sent. Pure.

No engine says what its vision encoder's cache holds. vLLM's rule is known, though (LRU by the order in which requests
are done with a medium, what a running request needs stays), and all requests come through the agent. When exactly a
request used a medium is not known, only that it was between its being sent and its being answered. So a medium counts
as held only if it would be under every order that is possible: it and everything that may have been used after it fit.

A medium is used when its tokens are computed, not when its KV is found, so the answer must say how many tokens were.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

PUBLISHED = 256
"""Identities a heartbeat may list: 3 KB. The latest used are listed."""

WATCHED = 4096
"""Media looked after at once; with more than these nothing is claimed until they are fewer."""


@dataclass(frozen=True, slots=True)
class SentMedium:
    """A medium of a request as it goes to the engine.

    ``identity`` None: the engine knows it by another name. ``tokens`` None: nobody knows how much room it takes.
    ``end``: the prompt token after its last.
    """

    identity: int | None
    tokens: int | None
    end: int = 0


@dataclass(slots=True)
class _Output:
    tokens: int
    sure: float = -inf
    """The last moment by which it was certainly used; -inf: it may be gone."""
    latest: float = -inf
    """The last moment at which it may have been used."""
    running: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Sending:
    """A request in flight."""

    at: int
    media: Sequence[SentMedium]
    names: Sequence[int] = field(default=())


class EncoderOutputs:
    """What one rank of an engine holds. Moments are counted, not timed."""

    def __init__(self, capacity_tokens: int) -> None:
        """``capacity_tokens``: media tokens the engine's encoder cache takes at least; 0: nothing is ever claimed."""
        self._capacity = capacity_tokens
        self._outputs: dict[int, _Output] = {}
        self._now = 0
        self._nameless = 0
        self._cleared = -1
        self._counts_cached = False

    @property
    def held(self) -> list[int]:
        """Identities whose outputs are surely there, the latest used first, at most ``PUBLISHED``."""
        sure = [(output.sure, name) for name, output in self._outputs.items() if output.sure > -inf]
        return [name for _, name in sorted(sure, reverse=True)[:PUBLISHED]]

    def sending(self, media: Sequence[SentMedium]) -> Sending:
        """A request goes to the engine: from now on its media may push others out."""
        self._now += 1
        if not self._capacity or not media:
            return Sending(self._now, ())
        names = []
        for medium in media:
            name = medium.identity
            if name is None:
                # Identities are not negative.
                self._nameless -= 1
                name = self._nameless
            names.append(name)
            output = self._outputs.setdefault(name, _Output(0))
            output.tokens = max(output.tokens, self._capacity if medium.tokens is None else medium.tokens)
            output.running += 1
        self._settle()
        return Sending(self._now, media, names)

    def answered(self, sending: Sending, cached_tokens: int | None, *, whole: bool) -> None:
        """A request has ended.

        ``cached_tokens`` is what the engine reported, None if nothing: some leave out a zero, so nothing means zero
        once there was a number. ``whole`` False: it failed or was broken off, and nobody knows how far it came.
        """
        self._now += 1
        self._counts_cached = self._counts_cached or cached_tokens is not None
        known = whole and self._counts_cached and sending.at > self._cleared
        for name, medium in zip(sending.names, sending.media, strict=False):
            output = self._outputs[name]
            output.running -= 1
            output.latest = self._now
            if known and medium.identity is not None and medium.end > (cached_tokens or 0):
                output.sure = max(output.sure, sending.at)
        # What was in flight was reckoned with: nothing else is pushed out by it now.
        for name in set(sending.names):
            output = self._outputs[name]
            if self._used_since(output.sure) > self._capacity:
                output.sure = -inf

    def clear(self) -> None:
        """The engine dropped its caches, or may have: what was used before now is not there any more."""
        self._now += 1
        self._cleared = self._now
        for output in self._outputs.values():
            output.sure = -inf
        self._settle()

    def _used_since(self, moment: float) -> int:
        """Tokens of all that may have been used since."""
        return sum(output.tokens for output in self._outputs.values() if output.running or output.latest >= moment)

    def _settle(self) -> None:
        """Give up what may have been pushed out, and forget what can push nothing out any more."""
        outputs = self._outputs
        order = sorted((inf if output.running else output.latest, output.tokens) for output in outputs.values())
        moments = [moment for moment, _ in order]
        after = [0] * (len(order) + 1)
        for place in range(len(order) - 1, -1, -1):
            after[place] = after[place + 1] + order[place][1]
        crowded = len(outputs) > WATCHED
        oldest = inf
        for output in outputs.values():
            if output.sure == -inf:
                continue
            # What was used last before its own last certain use is older than it; itself is among the later ones.
            if crowded or after[bisect_left(moments, output.sure)] > self._capacity:
                output.sure = -inf
            else:
                oldest = min(oldest, output.sure)
        for name in [name for name, output in outputs.items() if not output.running and output.latest < oldest]:
            del outputs[name]
