"""How long a step of the simulated engine takes. Pure: rates in, seconds out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """A step's time is the sum of what it does; the defaults are about an 8B model on one data-centre GPU.

    Rates are tokens per second, times are seconds.
    """

    prefill_tokens_per_second: float = 12_000.0
    vision_tokens_per_second: float = 20_000.0
    decode_step_seconds: float = 0.015
    decode_sequence_seconds: float = 0.000_05
    step_overhead_seconds: float = 0.002

    def __post_init__(self) -> None:
        for name in ("prefill_tokens_per_second", "vision_tokens_per_second"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected more than 0 tokens per second")
        for name in ("decode_step_seconds", "decode_sequence_seconds", "step_overhead_seconds"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 0 or more seconds")

    def step_seconds(self, *, prefill_tokens: int, decode_sequences: int, vision_tokens: int) -> float:
        """Seconds of one step that computes that many prompt tokens, decodes that many sequences and encodes media
        that take that many prompt tokens.
        """
        seconds = self.step_overhead_seconds
        seconds += prefill_tokens / self.prefill_tokens_per_second
        seconds += vision_tokens / self.vision_tokens_per_second
        if decode_sequences:
            seconds += self.decode_step_seconds + decode_sequences * self.decode_sequence_seconds
        return seconds
