"""Random numbers that can be drawn again: SplitMix64, seeded from what is decided."""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

_MASK64 = (1 << 64) - 1


def seed_of(request: str, attempt: int) -> int:
    """The seed of an attempt's decision: XXH3-64 of ``request#attempt``."""
    return xxh3_64_intdigest(f"{request}#{attempt}".encode())


class Draw:
    """A stream of numbers."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK64

    def integer(self) -> int:
        """The next 64-bit number."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK64
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK64
        return mixed ^ (mixed >> 31)

    def uniform(self) -> float:
        """A number in [0, 1), with 53 bits."""
        return (self.integer() >> 11) * 2.0**-53

    def below(self, bound: int) -> int:
        """An integer in [0, bound)."""
        return self.integer() * bound >> 64
