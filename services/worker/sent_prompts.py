"""The prompts with media that this agent sent a moment ago: what an engine's blocks may come from. Pure.

A prompt is kept while it runs and ``KEEP_SECONDS`` longer, because its last blocks may be read after its answer.
Whoever concludes from "only this one fits" needs to know that none is missing: ``complete`` says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from services.kv.address import Span

KEEP_SECONDS = 60.0
KEPT_PROMPTS = 4096
KEPT_ADDRESSES = 2_000_000
"""Of prompts that ended; older ones are forgotten early, and then nothing is complete for a while."""

TRUSTED_LAG_SECONDS = KEEP_SECONDS / 2
"""An event read later than this may come from a prompt that is forgotten."""


@dataclass(slots=True, eq=False)
class SentPrompt:
    """A prompt as the router predicts its blocks.

    ``addresses`` begin at the first block and reach at least to the last block that is full of prompt and holds a
    medium of ``spans``. ``whole``: all its media were sent under an identity and stand in ``spans``. ``session`` is
    what the engine is told; ``own`` says that no other request is told the same.
    """

    addresses: Sequence[int] = ()
    spans: tuple[Span, ...] = ()
    whole: bool = False
    session: str | None = None
    own: bool = False
    ended: float | None = None


@dataclass(slots=True)
class SentPrompts:
    """Remembers them. ``monotonic``: seconds that never go back."""

    monotonic: Callable[[], float]
    _running: dict[int, SentPrompt] = field(default_factory=dict)
    _ended: deque[SentPrompt] = field(default_factory=deque)
    _addresses: int = 0
    _forgot_until: float = float("-inf")
    _offset: float = float("inf")

    def begin(self, prompt: SentPrompt) -> None:
        """It is about to be sent."""
        self._running[id(prompt)] = prompt

    def end(self, prompt: SentPrompt) -> None:
        """It is answered, or given up."""
        if self._running.pop(id(prompt), None) is None:
            return
        prompt.ended = self.monotonic()
        self._ended.append(prompt)
        self._addresses += len(prompt.addresses)
        while len(self._ended) > KEPT_PROMPTS or self._addresses > KEPT_ADDRESSES:
            self._drop()
            self._forgot_until = self.monotonic() + KEEP_SECONDS

    def clear(self) -> None:
        """Another engine process: what was sent before comes back no more."""
        self._running.clear()
        self._ended.clear()
        self._addresses = 0
        self._forgot_until, self._offset = float("-inf"), float("inf")

    def of_session(self, session: str) -> list[SentPrompt]:
        """Those that were sent under a session id."""
        return [prompt for prompt in self if prompt.session == session]

    def complete(self, at: float) -> bool:
        """Whether every prompt that an event of this time (engine's clock, seconds) may come from is remembered.

        The two clocks need not agree: the least difference ever seen is taken for that of an event read at once.
        """
        now = self.monotonic()
        self._offset = min(self._offset, now - at)
        return now - at - self._offset < TRUSTED_LAG_SECONDS and now >= self._forgot_until

    def __iter__(self) -> Iterator[SentPrompt]:
        """All that are remembered."""
        oldest = self.monotonic() - KEEP_SECONDS
        while self._ended and (self._ended[0].ended or 0.0) < oldest:
            self._drop()
        yield from list(self._running.values())
        yield from list(self._ended)

    def _drop(self) -> None:
        self._addresses -= len(self._ended.popleft().addresses)
