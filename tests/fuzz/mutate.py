"""Damages files the ways networks, editors and attackers do. Deterministic by seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

_EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def flip(data: bytearray, draw: random.Random) -> None:
    """Some bits."""
    for _ in range(draw.choice((1, 2, 8, 64))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def overwrite(data: bytearray, draw: random.Random) -> None:
    """A run of bytes with noise, or with one byte."""
    start = draw.randrange(len(data))
    length = min(len(data) - start, draw.choice((1, 4, 32, 256)))
    data[start : start + length] = draw.choice((draw.randbytes(length), bytes([draw.randrange(256)]) * length))


def number(data: bytearray, draw: random.Random) -> None:
    """A length or a count, in either order of bytes."""
    size = draw.choice((1, 2, 4, 8))
    start = draw.randrange(len(data))
    value = draw.choice(_EXTREMES) & ((1 << 8 * size) - 1)
    data[start : start + size] = value.to_bytes(size, draw.choice(("big", "little")))


def cut(data: bytearray, draw: random.Random) -> None:
    """The end."""
    del data[draw.randrange(1, len(data) + 1) :]


def remove(data: bytearray, draw: random.Random) -> None:
    """A piece of the middle."""
    start = draw.randrange(len(data))
    del data[start : start + draw.choice((1, 7, 64, 500))]


def repeat(data: bytearray, draw: random.Random) -> None:
    """A piece once more, elsewhere."""
    start = draw.randrange(len(data))
    piece = data[start : start + draw.choice((4, 64, 1000))]
    at = draw.randrange(len(data))
    data[at:at] = piece


CHANGES: Sequence[Callable[[bytearray, random.Random], None]] = (flip, overwrite, number, number, cut, remove, repeat)


def mutated(files: Sequence[bytes], seed: int) -> bytes:
    """A damaged file: one of ``files`` changed up to three times, sometimes with the end of another."""
    draw = random.Random(seed)
    data = bytearray(draw.choice(files))
    for _ in range(draw.choice((1, 1, 2, 3))):
        if data:
            draw.choice(CHANGES)(data, draw)
    if draw.random() < 0.05:
        other = draw.choice(files)
        data += other[draw.randrange(len(other)) :]
    return bytes(data)
