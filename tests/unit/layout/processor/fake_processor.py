"""A processor without a library, for real processes: the height of a picture says what becomes of it."""

from __future__ import annotations

import os
import time
from typing import Any

from services.layout.processor.asked import Description, Medium, Placeholder, ProcessorRefused
from services.layout.processor.child import speaking

PAD, START, END, WORD = 151655, 151652, 151653, 9
HANGS, DIES, FILLS_MEMORY, REFUSES, STUMBLES, EMPTY, RUBBISH, NO_VISION, OPEN_END, LOOSE = range(1, 11)
ODD: dict[int, Any] = {
    EMPTY: [],
    RUBBISH: ["a"],
    NO_VISION: [START, END],
    OPEN_END: [PAD, PAD, WORD],
    LOOSE: [WORD, PAD],
}


def describe(folder: str) -> Description:
    """A processor of images."""
    if folder.endswith("broken"):
        raise ProcessorRefused("no processor here")
    specials = frozenset({PAD, START, END})
    return Description("1.2.3", "FakeProcessor", Placeholder(PAD, "<|image_pad|>", (PAD,)), None, specials)


def expand(folder: str, medium: Medium) -> list[int]:
    """A token for each 28x28 pixels, as long as nothing odd is wished for."""
    return speaking(lambda: _expand(medium))


def _expand(medium: Medium) -> list[int]:
    if medium.height == HANGS:
        time.sleep(600)
    elif medium.height == DIES:
        os._exit(11)
    elif medium.height == FILLS_MEMORY:
        return [len(bytearray(2 << 30))]
    elif medium.height == REFUSES:
        raise ProcessorRefused("too flat")
    elif medium.height == STUMBLES:
        raise _OnlyHere(open(os.devnull))  # noqa: SIM115 - an error that can't travel between processes
    elif medium.height in ODD:
        found: list[int] = ODD[medium.height]
        return found
    return [PAD] * (medium.height // 28 * (medium.width // 28))


class _OnlyHere(Exception):
    pass
