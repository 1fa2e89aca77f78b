"""Square tiles for an image, as InternVL cuts it: the arrangement nearest to the image's shape, and a thumbnail."""

from __future__ import annotations

from functools import lru_cache

Arrangement = tuple[int, int]
"""Columns and rows."""


@lru_cache
def arrangements(most: int) -> tuple[Arrangement, ...]:
    """Every arrangement of up to ``most`` tiles, fewest tiles first."""
    found = [(wide, tall) for wide in range(1, most + 1) for tall in range(1, most // wide + 1)]
    return tuple(sorted(found, key=lambda one: one[0] * one[1]))


def tiles_of(height: int, width: int, tile: int, most: int, *, thumbnail: bool) -> int:
    """Tiles of an image, the thumbnail of those with several included.

    Of arrangements equally near the later (larger) one wins if the image has over half its pixels.
    """
    shape = width / height
    best, least = (1, 1), float("inf")
    for wide, tall in arrangements(most):
        difference = abs(shape - wide / tall)
        fits = difference == least and width * height > 0.5 * tile * tile * wide * tall
        if difference < least or fits:
            best, least = (wide, tall), difference
    tiles = best[0] * best[1]
    return tiles + 1 if thumbnail and tiles > 1 else tiles
