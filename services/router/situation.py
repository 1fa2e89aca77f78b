"""What a choice is made from: the prompt, the slots, the parameters. All of it is recorded in the decision."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from services.router.slots import NO_OVERLAP, Overlap, SlotEpoch


@dataclass(frozen=True, slots=True)
class Medium:
    """A medium's place in the prompt: tokens ``[offset, end)``, of which the vision encoder fills some."""

    end: int
    vision_tokens: int
    identity: int | None = None
    """As the engine is told it; None: it is not."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The part of an expanded request that a choice looks at."""

    request: str
    attempt: int
    model: str
    prompt_tokens: int
    addresses: Mapping[int, Sequence[int]]
    lora: str | None = None
    session_id: str | None = None
    media: tuple[Medium, ...] = ()
    unplaced_vision_tokens: int = 0

    def blocks(self, block_size: int) -> int:
        """Full blocks of the whole prompt."""
        return self.prompt_tokens // block_size

    def usable(self, overlap: int, block_size: int) -> int:
        """Blocks of an overlap that save work: the engine always computes the last token."""
        return min(overlap, max(0, self.prompt_tokens - 1) // block_size)

    def vision_tokens(self, cached_tokens: int) -> int:
        """Tokens the vision encoder must still fill: those of media that do not lie in the cached prefix whole."""
        if not self.media:
            return self.unplaced_vision_tokens
        return self.unplaced_vision_tokens + sum(m.vision_tokens for m in self.media if m.end > cached_tokens)

    def encoder_tokens(self, cached_tokens: int, held: Collection[int]) -> int:
        """Of these, tokens of media whose encoder output is held: they are filled without running the encoder."""
        if not held:
            return 0
        return sum(m.vision_tokens for m in self.media if m.end > cached_tokens and m.identity in held)

    @property
    def identities(self) -> frozenset[int]:
        """Media by the identities engines know them by. With a LoRA an encoder's output may be another: none."""
        if self.lora:
            return frozenset()
        return frozenset(medium.identity for medium in self.media if medium.identity is not None)


@dataclass(slots=True)
class SlotView:
    """A slot as it stands at the moment of the choice. Not frozen: there may be a thousand, and it costs."""

    life: SlotEpoch
    model: str
    block_size: int
    loras: frozenset[str] = frozenset()
    leased: bool = True
    healthy: bool = True
    live: bool = True
    capacity: int = 1_000_000
    worker_requests: int = 0
    reported: Mapping[str, float] = field(default_factory=dict)
    overlap: Overlap = NO_OVERLAP
    overlap_predicted: int = 0
    encoder: frozenset[int] = frozenset()
    """Media of this prompt whose encoder outputs the slot still holds, by identity."""
    uncertain: bool = False
    upper_bound: bool = False
    """The engine may reuse less of the overlap than its events say."""
    active_prefill_tokens: int = 0
    active_decode_blocks: int = 0
    active_requests: int = 0
    active_prefix_blocks: int = 0
    """Leading blocks of this prompt that are active on the slot already."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Weights and scales. Times are milliseconds, rates tokens per second."""

    overlap_credit: float = 1.0
    host_credit: float = 0.75
    disk_credit: float = 0.25
    prefill_scale: float = 1.0
    request_weight: float = 0.0
    temperature: float = 0.0
    vision_weight: float = 1.0
    encoder_credit: float = 1.0
    busy_kv_usage: float = 1.0
    busy_waiting: float = 1_000_000
    prefill_rate: float = 8000.0
    decode_interval_ms: float = 20.0
    turn: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """As the decision records them."""
        return {name: float(getattr(self, name)) for name in self.__slots__}
