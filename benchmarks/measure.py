"""Timing with a baseline beside it: both sides alternate in the same run, medians are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """Median of several runs, and the range they span."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of measured values. Raises ValueError for none."""
        if not values:
            raise ValueError("nothing was measured")
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class Row:
    """One measured case beside its baseline; ``ratio`` is median over baseline median."""

    case: str
    unit: str
    value: Spread
    baseline: Spread | None = None
    baseline_name: str = ""
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Measured over baseline, or None without a baseline."""
        return self.value.median / self.baseline.median if self.baseline and self.baseline.median else None

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"ratio": self.ratio}


def alternate(
    measured: Callable[[], float], baseline: Callable[[], float] | None = None, *, runs: int = 7
) -> tuple[Spread, Spread | None]:
    """Run both sides in turn ``runs`` times; each call returns its own number. The first turn is a warm-up."""
    values: list[float] = []
    floors: list[float] = []
    for turn in range(runs + 1):
        value = measured()
        floor = baseline() if baseline else 0.0
        if turn:
            values.append(value)
            floors.append(floor)
    return Spread.of(values), Spread.of(floors) if baseline else None


def microseconds_of(work: Callable[[], object], *, at_least: float = 0.02, most: int = 10_000) -> float:
    """Mean microseconds of one call, over as many calls as fill ``at_least`` seconds."""
    calls = 0
    start = time.perf_counter()
    while True:
        work()
        calls += 1
        spent = time.perf_counter() - start
        if spent >= at_least or calls >= most:
            return spent / calls * 1e6


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie (nearest rank)."""
    if not values:
        raise ValueError("nothing was measured")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
