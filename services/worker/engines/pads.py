"""SGLang's pad values: a number in place of a medium's tokens, made of the hash the medium was sent with. Pure.

The pad is ``1_000_000 + hash mod 2^30``, so it says 30 bits of an identity: it is turned back with the identities this
agent has sent. A pad of none of them is a medium of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from services.kv.identity import foreign_identity
from services.worker.engines.events import Cause
from services.worker.engines.pages import Block

PAD_BASE = 1_000_000
PAD_SPAN = 1 << 30
KEPT = 200_000
"""Pads remembered; an engine's cache holds fewer media."""


def pad_of(identity: int) -> int:
    """The pad of a medium sent under this identity."""
    return PAD_BASE + identity % PAD_SPAN


def is_pad(token: int) -> bool:
    """Whether a token id is a pad: no vocabulary is that large."""
    return PAD_BASE <= token < PAD_BASE + PAD_SPAN


class SentPads:
    """The identities this agent has sent, by pad."""

    def __init__(self) -> None:
        self._sent: OrderedDict[int, set[int]] = OrderedDict()

    def sent(self, identity: int) -> None:
        """A medium is sent under this identity."""
        pad = pad_of(identity)
        self._sent.setdefault(pad, set()).add(identity)
        self._sent.move_to_end(pad)
        if len(self._sent) > KEPT:
            self._sent.popitem(last=False)

    def identity(self, pad: int) -> int | None:
        """Whose pad it is; None when two media share it: the engine can't tell them apart either."""
        known = self._sent.get(pad)
        if known is None:
            return foreign_identity(f"pad {pad}")
        return next(iter(known)) if len(known) == 1 else None


@dataclass(frozen=True, slots=True)
class PadReader:
    """Reads blocks with pads. ``media_tokens`` are ids that stand in media only; ``placeholder`` is an image's."""

    pads: SentPads
    placeholder: int | None
    media_tokens: frozenset[int] = frozenset()

    def __call__(self, tokens: Sequence[int]) -> Block | Cause:
        """Canonical ids and identities; a cause where a medium stands in the block that nothing names."""
        canonical: list[int] = []
        identities: list[int] = []
        last_pad: int | None = None
        unnamed = False
        for token in tokens:
            if is_pad(token):
                if self.placeholder is None:
                    return Cause.UNNAMED_MEDIA
                canonical.append(self.placeholder)
                unnamed = False
                if token != last_pad:
                    last_pad = token
                    identity = self.pads.identity(token)
                    if identity is None:
                        return Cause.AMBIGUOUS_KEYS
                    identities.append(identity)
                continue
            canonical.append(token)
            if token in self.media_tokens:
                # A separator within the range of a medium, whose pads stand beside it.
                unnamed = unnamed or last_pad is None
                continue
            if unnamed:
                return Cause.UNNAMED_MEDIA
            last_pad = None
        return Cause.UNNAMED_MEDIA if unnamed else (canonical, tuple(identities))
