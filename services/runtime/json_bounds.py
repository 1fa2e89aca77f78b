"""How many values a JSON text has, before it is parsed. Pure.

A parser holds the interpreter's lock from the first byte to the last. Text costs it next to nothing (a picture of
13 MB: 20 ms); values cost memory and time each (16 MB of empty lists: a second and 300 MB). So what a parser is given
is bounded in values, and they are counted by steps that let other threads in between.
"""

from __future__ import annotations

MOST_VALUES = 200_000
"""Of one request: 60 ms of parsing at the worst. A conversation of 20,000 messages has fewer."""

_STEP = 64 << 10


def has_more_values(raw: bytes, most: int = MOST_VALUES) -> bool:
    """Whether a JSON text has more values than that (an object's name and value count as one, containers one each).

    Never says no of a text that has more. For what is no JSON it says anything, and as quickly.
    """
    if len(raw) // 2 < most:
        return False  # a value takes two bytes at least: itself and what divides it from the next
    found, inside, start = 1, False, 0
    while start < len(raw) and found <= most:
        piece = raw[start : start + _STEP]
        if len(piece) == _STEP and (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = piece[:-1]  # a backslash stays with what it escapes
        start += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        texts = piece.split(b'"')
        for outside in texts[inside::2]:
            if outside:
                found += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        inside ^= not len(texts) % 2
    return found > most
