"""The router's index: storing, removing and matching at 8, 64 and 256 slots, beside a bare dict."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

from benchmarks.measure import Row, Spread, alternate, microseconds_of
from services.kv.tier import Tier
from services.router.index import PrefixIndex, Resident

SLOTS = (8, 64, 256)
PROMPTS = (512, 2048)
EVENTS = (1, 16, 64)
TOTAL = 131_072
BACKGROUND = 1_000_000


def rows() -> Iterator[Row]:
    """Store and remove by blocks an event, then match by prompt length; all at each number of slots."""
    for slots in SLOTS:
        for event in EVENTS:
            yield from _store_and_remove(slots, event)
        for lengths in (1, 8):
            index, residents, prompts = _filled(slots, lengths)
            for length in PROMPTS:
                yield _match(index, residents, prompts[length], lengths)


def _store_and_remove(slots: int, event: int) -> Iterator[Row]:
    """Half of the addresses are shared by two slots, as prefixes are."""
    numbers = _numbers(TOTAL // 2, seed=slots)
    pieces = [numbers[at : at + event] for at in range(0, len(numbers), event)]
    stored: list[float] = []
    removed: list[float] = []

    def ours() -> float:
        index = PrefixIndex()
        residents = [index.join() for _ in range(slots)]
        start = time.perf_counter()
        for turn in (0, 1):
            for at, piece in enumerate(pieces):
                index.store(residents[(at + turn) % slots], Tier.DEVICE, piece)
        middle = time.perf_counter()
        for turn in (0, 1):
            for at, piece in enumerate(pieces):
                index.remove(residents[(at + turn) % slots], Tier.DEVICE, piece)
        end = time.perf_counter()
        stored.append(TOTAL / (middle - start))
        removed.append(TOTAL / (end - middle))
        return stored[-1]

    def bare() -> float:
        table: dict[int, int] = {}
        start = time.perf_counter()
        for turn in (0, 1):
            for at, piece in enumerate(pieces):
                bit = 1 << (at + turn) % slots
                for address in piece:
                    table[address] = table.get(address, 0) | bit
        return TOTAL / (time.perf_counter() - start)

    value, floor = alternate(ours, bare, runs=5)
    name = f"{event} block{'s' if event > 1 else ''} an event, {slots} slots"
    yield Row(f"store, {name}", "addresses/s", value, floor, "bare dict of masks")
    yield Row(f"remove, {name}", "addresses/s", Spread.of(removed[1:]), floor, "bare dict of masks, storing")


def _filled(slots: int, lengths: int) -> tuple[PrefixIndex, list[Resident], dict[int, list[int]]]:
    """An index of a million other entries, and prompts that the slots hold to so many different lengths."""
    index = PrefixIndex()
    residents = [index.join() for _ in range(slots)]
    share = BACKGROUND // slots
    for number, resident in enumerate(residents):
        index.store(resident, Tier.DEVICE, _numbers(share, seed=1000 + number))
    prompts = {length: _numbers(length, seed=length) for length in PROMPTS}
    for prompt in prompts.values():
        for number, resident in enumerate(residents):
            index.store(resident, Tier.DEVICE, prompt[: _held(len(prompt), number, lengths)])
    return index, residents, prompts


def _held(length: int, number: int, lengths: int) -> int:
    return length * (1 + number % lengths) // lengths


def _match(index: PrefixIndex, residents: Sequence[Resident], prompt: list[int], lengths: int) -> Row:
    slots, length = len(residents), len(prompt)
    held = [_held(length, number, lengths) for number in range(slots)]
    table = {
        address: sum(resident.bit for number, resident in enumerate(residents) if at < held[number])
        for at, address in enumerate(prompt)
    }

    def walk() -> dict[int, int]:
        alive, found = (1 << slots) - 1, dict[int, int]()
        for at, address in enumerate(prompt):
            mask = table.get(address, 0) & alive
            if mask != alive:
                found[at] = alive ^ mask
                alive = mask
        found[length] = alive
        return found

    value, floor = alternate(
        lambda: microseconds_of(lambda: index.match(prompt)), lambda: microseconds_of(walk)
    )
    held_to = "all of it" if lengths == 1 else f"{lengths} lengths of it"
    return Row(f"match {length:,} blocks, {slots} slots hold {held_to}", "µs", value, floor, "walk block by block")


def _numbers(count: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.getrandbits(64) for _ in range(count)]
