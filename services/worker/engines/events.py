"""What any engine says about its KV cache, in words no engine owns. The translator needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from services.kv.tier import Tier
from services.runtime.errors import KvrouteError

EngineHash = int | bytes
"""An engine's own name for a cached block: an opaque key, meaningful on that worker only."""


class EngineEventError(KvrouteError):
    """A batch or an event that is not what the engine's documented form says."""


class Cause(StrEnum):
    """Why blocks an engine announced got no address (a metric label)."""

    UNKNOWN_PARENT = "unknown_parent"
    UNKNOWN_BLOCK = "unknown_block"
    PROMPT_EMBEDS = "prompt_embeds"
    UNNAMED_MEDIA = "unnamed_media"
    UNBOUND_MEDIA = "unbound_media"
    AMBIGUOUS_MEDIA = "ambiguous_media"
    UNNAMED_LORA = "unnamed_lora"
    AMBIGUOUS_KEYS = "ambiguous_keys"
    MALFORMED_KEYS = "malformed_keys"
    OTHER_GROUP = "other_group"
    OTHER_PLACE = "other_place"
    MISFIT = "misfit"


@dataclass(slots=True)
class Keys:
    """What beside token ids tells the blocks of one event apart.

    ``media`` holds per block the identities of the media that overlap it, in prompt order (``None``: no media in
    any block). ``salt`` speaks of a root event only: children inherit it. Blocks from index ``addressable`` on have
    no address, for ``cause``; ``None`` means all have one. ``named`` is there when a medium's identifier is not of our
    form: per block of ``media`` the identifiers and the place where each medium begins, counted from the block's.
    """

    salt: str | None = None
    media: Sequence[tuple[int, ...]] | None = None
    addressable: int | None = None
    cause: Cause | None = None
    named: Sequence[tuple[tuple[str, int], ...]] | None = None


@dataclass(slots=True)
class Stored:
    """Full blocks that entered a tier, each the child of the one before; ``parent`` is the first one's, None a root.

    ``token_ids`` is flat, ``len(hashes) * block_size`` ids; empty when the event only names blocks that were
    announced before (a copy in another tier).
    """

    hashes: list[EngineHash]
    parent: EngineHash | None
    token_ids: list[int]
    block_size: int
    tier: Tier | None = Tier.DEVICE
    lora: str | None = None
    keys: Keys = field(default_factory=Keys)
    group: int | None = None
    reusable: bool = True
    """False: a cache group that says nothing about a reusable prefix (Mamba state, sliding window)."""
    session: str | None = None
    """The session id of the request that filled the blocks, where the engine says it."""


@dataclass(slots=True)
class Removed:
    """Copies of blocks that left a tier (``None``: a place we do not follow)."""

    hashes: list[EngineHash]
    tier: Tier | None = Tier.DEVICE
    group: int | None = None


@dataclass(slots=True)
class Cleared:
    """The whole cache is void. It names no medium, and what a reset makes invalid is invalid in every tier."""


@dataclass(slots=True)
class Unrecognised:
    """An event of a type we do not know: counted, never guessed at."""

    type: str


@dataclass(slots=True)
class Unaddressable:
    """Blocks an adapter had to leave out, for this cause: counted."""

    cause: Cause
    blocks: int


Event = Stored | Removed | Cleared | Unrecognised | Unaddressable


@dataclass(slots=True)
class Batch:
    """What one engine step announced. ``at`` is the engine's wall clock in seconds."""

    at: float
    events: list[Event]
    rank: int | None = None


class Decodes(Protocol):
    """An engine's adapter: a payload in, a batch out."""

    def decode(self, payload: bytes) -> Batch:
        """One batch. Raises EngineEventError when the payload is none."""
        ...

    def reset(self) -> None:
        """Events were lost: what was remembered of earlier ones counts no more."""
        ...
