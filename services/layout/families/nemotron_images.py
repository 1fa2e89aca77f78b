"""How Nemotron Nano sizes images by the patch, within a budget that all images of a request share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt

PATCHES_PER_TOKEN = 4
"""Patches that the pixel shuffle makes into one token: two by two, so grids have even sides."""

RESERVED_TOKENS = 4
"""Of the model's length, kept from images."""

ATTEMPTS = 10
"""How often the reference shrinks images that don't fit together."""

Grid = tuple[int, int]
"""Rows and columns of patches."""


@dataclass(frozen=True, slots=True)
class ImageBudget:
    """Parameters of the dynamic resolution, patches but for ``patch`` (pixels)."""

    patch: int
    fewest: int
    most: int

    def available(self, max_model_len: int, images: int, text_tokens: int = 0) -> int:
        """Patches for all images of a request. vLLM 0.32 does not count the prompt's text."""
        room = (max_model_len - text_tokens - RESERVED_TOKENS) * PATCHES_PER_TOKEN
        return max(room, self.fewest * images)

    def grid(self, height: int, width: int, budget: int) -> Grid:
        """Patches of one image of at most ``budget``. Raises ZeroDivisionError for images that are too thin.

        A very thin image may exceed the budget: its shorter side is never under two patches.
        """
        rows, columns = round(height / self.patch + 0.5), round(width / self.patch + 0.5)
        factor = min(sqrt(budget / (rows * columns)), 1)
        tall, wide = floor(factor * rows), floor(factor * columns)
        if budget > self.fewest and tall * wide < self.fewest:
            enlarge = sqrt(self.fewest / (tall * wide))
            tall, wide = ceil(enlarge * tall), ceil(enlarge * wide)
        tall = _even(tall, wide, budget)
        return tall, _even(wide, tall, budget)

    def alone(self, height: int, width: int, max_model_len: int) -> Grid:
        """Patches of an image that leaves enough to the others. Raises ZeroDivisionError."""
        return self.grid(height, width, max(self.fewest, min(self.available(max_model_len, 1), self.most)))

    def grids(self, sizes: Sequence[tuple[int, int]], max_model_len: int, text_tokens: int = 0) -> list[Grid]:
        """Patches of the images of one request, shrunk until they fit together or nothing shrinks any more."""
        available = self.available(max_model_len, len(sizes), text_tokens)
        budgets = [max(self.fewest, min(available, self.most))] * len(sizes)
        grids: list[Grid] = []
        for _ in range(ATTEMPTS):
            grids = [self.grid(*size, budget) for size, budget in zip(sizes, budgets, strict=True)]
            areas = [tall * wide for tall, wide in grids]
            if sum(areas) <= available:
                break
            scale = available / sum(areas)
            shrunk = [max(self.fewest, int(area * scale)) for area in areas]
            nothing_shrank = all(new >= old for new, old in zip(shrunk, budgets, strict=True))
            budgets = [self.fewest] * len(sizes) if nothing_shrank else shrunk
        return grids


def _even(side: int, other: int, budget: int) -> int:
    """One side of a grid made even: up where that stays in the budget, else down."""
    if side % 2 == 0:
        return side
    return side + 1 if (side + 1) * other <= budget else max(2, side - 1)
