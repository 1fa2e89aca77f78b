"""Damaged files through decoding and hashing, in a process that may die of it: what became of them."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from services.kv.sampling import Loader, Sampling
from services.media.pixels import decode_image
from services.media.unusable import Unusable
from services.media.video import VideoBounds, decode_video
from services.runtime.offload import DecodePool
from tests.fuzz.corpus import images, videos
from tests.fuzz.mutate import mutated

PIXELS = 4_000_000
SECONDS = 10.0
"""Of one file. Far above what any takes: beyond it a decoder hangs."""

GROWTH_BYTES = 256 << 20
"""Of the process's peak, after the first part of the files: decoders keep some pools, leaks go on."""

_PART = {"images": 500, "videos": 50}


@dataclass
class Outcome:
    """Numbers of files by what became of them; ``identity`` for those that could be read."""

    outcomes: Counter[str] = field(default_factory=Counter)
    untyped: list[str] = field(default_factory=list)
    slowest: float = 0.0
    peaks: list[int] = field(default_factory=list)

    @property
    def growth(self) -> int:
        """Bytes the process's peak grew by since its first part."""
        return self.peaks[-1] - self.peaks[0] if self.peaks else 0

    def problems(self) -> list[str]:
        """What must not be."""
        found = self.untyped[:5]
        if self.slowest > SECONDS:
            found.append(f"a file took {self.slowest:.1f} s, expected at most {SECONDS:g}")
        if self.growth > GROWTH_BYTES:
            found.append(f"memory grew by {self.growth >> 20} MiB, expected at most {GROWTH_BYTES >> 20}")
        return found


def try_part(kind: str, first: int, count: int) -> Outcome:
    """Files with the seeds from ``first`` on, one after another. Runs in the child."""
    files, read = (images(), _image) if kind == "images" else (videos(), _video)
    outcome = Outcome()
    for seed in range(first, first + count):
        data = mutated(files, seed)
        started = time.perf_counter()
        try:
            read(data, seed)
            outcome.outcomes["identity"] += 1
        except Unusable as error:
            outcome.outcomes[error.reason.value] += 1
        except Exception as error:
            outcome.untyped.append(f"{kind} seed {seed}: {type(error).__name__}: {error}")
        outcome.slowest = max(outcome.slowest, time.perf_counter() - started)
    outcome.peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
    return outcome


async def run(kind: str, count: int, *, say: Callable[[str], None] = lambda line: None, first: int = 0) -> Outcome:
    """All files of a campaign. Raises OffloadCrashed or OffloadTimeout naming no file: ``say`` told the part before."""
    total = Outcome()
    pool = DecodePool(1)
    try:
        for start in range(first, first + count, _PART[kind]):
            part = min(_PART[kind], first + count - start)
            say(f"{kind} {start} to {start + part - 1}")
            found = await pool.run(try_part, kind, start, part, seconds=SECONDS * part)
            total.outcomes += found.outcomes
            total.untyped += found.untyped
            total.slowest = max(total.slowest, found.slowest)
            total.peaks += found.peaks
    finally:
        pool.stop()
    return total


def _image(data: bytes, seed: int) -> None:
    decode_image(data, PIXELS)


def _video(data: bytes, seed: int) -> None:
    loader = list(Loader)[seed % len(Loader)]
    decode_video(data, Sampling.usual(loader), VideoBounds(PIXELS, 40 * PIXELS, SECONDS))
