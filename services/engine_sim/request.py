"""A request inside the engine: its tokens, media, block table and progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.engine_sim.events import ExtraKeys
from services.engine_sim.pool import Block, BlockHash


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """One medium's placeholder range in the prompt: tokens ``[offset, offset + length)``."""

    modality: str
    identifier: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        """The token after its last."""
        return self.offset + self.length

    def overlaps(self, start: int, end: int) -> bool:
        """Whether any of tokens ``[start, end)`` is the medium's."""
        return self.offset < end and start < self.end


@dataclass(slots=True, eq=False)
class EngineRequest:
    """``token_ids`` starts as the prompt and grows by each generated token.

    ``max_tokens`` ends it with reason ``length``; ``stop_after`` generated tokens end it with ``stop`` (the
    simulated model's own end of text). Everything below the marker is the scheduler's.
    """

    request_id: str
    token_ids: list[int]
    max_tokens: int
    media: Sequence[MediaSpan] = ()
    stop_after: int | None = None
    lora_name: str | None = None
    lora_id: int | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    report_full: bool = False

    # The scheduler's
    prompt_tokens: int = field(init=False)
    block_hashes: list[BlockHash] = field(default_factory=list)
    extra_keys: list[ExtraKeys] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    computed_tokens: int = 0
    committed_blocks: int = 0
    cached_tokens: int | None = None
    created_tokens: int = 0
    preemptions: int = 0
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.token_ids)

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.prompt_tokens

    @property
    def output_ids(self) -> list[int]:
        """The generated tokens."""
        return self.token_ids[self.prompt_tokens :]

    @property
    def finished(self) -> bool:
        """Whether it left the scheduler, by whatever way."""
        return self.finish_reason is not None
