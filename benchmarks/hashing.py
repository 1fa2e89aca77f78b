"""Block addresses of prompts of 1k to 128k tokens, beside a plain loop of xxhash over the same blocks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from xxhash import xxh3_64_intdigest

from benchmarks.measure import Row, alternate, microseconds_of
from services.kv.address import Span, addresses, token_bytes_of

BLOCK = 16
SIZES = (1024, 8192, 32_768, 131_072)
IMAGE_TOKENS = 256


def rows() -> Iterator[Row]:
    """One row a prompt length, without media and with an image every 2,048 tokens."""
    for size in SIZES:
        tokens = random.Random(size).choices(range(150_000), k=size)
        images = [Span(at, IMAGE_TOKENS, at * 7919 + 1) for at in range(512, size, 2048)]
        for name, spans in (("text", []), (f"{len(images)} images", images)):
            value, floor = alternate(
                partial(microseconds_of, partial(addresses, tokens, BLOCK, spans)),
                partial(microseconds_of, partial(plain_loop, tokens)),
            )
            yield Row(
                f"addresses of {size:,} tokens, {name}",
                "µs",
                value,
                floor,
                "xxh3 of each block, no chain",
                {"tokens_per_second": size / value.median * 1e6},
            )


def plain_loop(tokens: list[int]) -> list[int]:
    """The floor: hash every block's bytes, nothing else."""
    data = token_bytes_of(tokens)
    width = BLOCK * 4
    return [xxh3_64_intdigest(data[start : start + width], 1337) for start in range(0, len(data) - width + 1, width)]
