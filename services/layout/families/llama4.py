"""Llama 4 (Scout, Maverick): an image is cut into tiles on the best fitting canvas; the whole image follows as one."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from services.layout.families.family import Expansion, run
from services.layout.families.image_only import ImageFamily
from services.layout.families.parameters import Checkpoint, UnusableFamily, count, same, section

Tiles = tuple[int, int]
"""Rows and columns."""

MOST_TILES = 256
"""A checkpoint that asks for more is not looked at: there are too many arrangements."""


def canvases(most: int) -> tuple[Tiles, ...]:
    """Every arrangement of up to ``most`` tiles, in the reference's order: by shape, shapes as they first come up."""
    by_shape: dict[float, list[Tiles]] = {}
    for total in range(most, 0, -1):
        for rows in range(1, total + 1):
            if total % rows == 0:
                by_shape.setdefault(rows / (total // rows), []).append((rows, total // rows))
    return tuple(tiles for group in by_shape.values() for tiles in group)


class Canvases:
    """Chooses the canvas for an image. The reference compares scales in float32, and so does this, bit for bit."""

    def __init__(self, most: int, tile: int, *, to_max_canvas: bool = False) -> None:
        """``most`` tiles of ``tile`` pixels; ``to_max_canvas`` prefers the largest canvas over the nearest."""
        self.arrangements = canvases(most)
        self._sides = np.array(self.arrangements, dtype=np.float32) * np.float32(tile)
        self._to_max_canvas = to_max_canvas

    def best(self, height: int, width: int) -> Tiles:
        """The smallest enlargement, else the slightest reduction; of those alike the smallest area, then the first."""
        scales = np.minimum(self._sides[:, 0] / np.float32(height), self._sides[:, 1] / np.float32(width))
        larger = scales[scales >= 1]
        of_larger = np.max if self._to_max_canvas else np.min
        scale = of_larger(larger) if larger.size else scales.max()
        alike = [self.arrangements[index] for index in np.flatnonzero(scales == scale)]
        return min(alike, key=lambda tiles: tiles[0] * tiles[1])


@dataclass(frozen=True)
class Llama4Ids:
    """Special token ids beside the placeholder ``<|image|>``."""

    start: int
    end: int
    column: int
    row: int
    patch: int


@dataclass(frozen=True)
class Llama4(ImageFamily):
    """Layout of ``llama4``: from ``<|image_start|>`` to ``<|image_end|>``."""

    ids: Llama4Ids
    canvas: Canvases
    per_tile: int

    @property
    def media_tokens(self) -> frozenset[int]:
        """All of an image's tokens are special."""
        return frozenset({self.image_token, *astuple(self.ids)})

    def expand_image(self, height: int, width: int) -> Expansion:
        """Tiles row by row with their separators, then ``<|image|>`` and the whole image as one tile."""
        rows, columns = self.canvas.best(height, width)
        tile = run(self.ids.patch, self.per_tile)
        token_ids = [self.ids.start]
        if rows * columns > 1:
            for _ in range(rows):
                token_ids += [*tile, *[self.ids.column, *tile] * (columns - 1), self.ids.row]
        token_ids += [self.image_token, *tile, self.ids.end]
        tiles = rows * columns + 1 if rows * columns > 1 else 1
        return Expansion(token_ids, tiles * self.per_tile)


def build(model_type: str, checkpoint: Checkpoint) -> Llama4:
    """The layout of a checkpoint. Raises UnusableFamily."""
    processor, images = checkpoint.folder.processor, checkpoint.folder.image_processor
    tile = count(checkpoint.vision, "image_size", "config.json")
    patch = count(checkpoint.vision, "patch_size", "config.json")
    ratio = checkpoint.vision.get("pixel_shuffle_ratio")
    if not isinstance(ratio, float) or not 0 < ratio <= 1:
        raise UnusableFamily(f"config.json has no usable pixel_shuffle_ratio: found {ratio!r}")
    size = section(images, "size")
    for side in ("height", "width"):
        same("the tile's size", ("config.json", tile), ("preprocessor_config.json", size.get(side)))
    same("patch_size", ("config.json", patch), ("processor_config.json", processor.get("patch_size")))
    shuffled = processor.get("pixel_shuffle_ratio")
    same("pixel_shuffle_ratio", ("config.json", ratio), ("processor_config.json", shuffled))
    text = checkpoint.token_text("fake_image_token", "<|image|>")
    ids = Llama4Ids(
        start=checkpoint.agreed("boi_token_index", checkpoint.token_text("start_of_image_token", "<|image_start|>")),
        end=checkpoint.agreed("eoi_token_index", checkpoint.token_text("end_of_image_token", "<|image_end|>")),
        column=checkpoint.special(checkpoint.token_text("tile_x_separator_token", "<|tile_x_separator|>")),
        row=checkpoint.special(checkpoint.token_text("tile_y_separator_token", "<|tile_y_separator|>")),
        patch=checkpoint.agreed("image_token_index", checkpoint.token_text("patch_token", "<|patch|>")),
    )
    canvas = Canvases(
        count(images, "max_patches", "preprocessor_config.json", most=MOST_TILES),
        tile,
        to_max_canvas=bool(images.get("resize_to_max_canvas")),
    )
    per_tile = (tile // patch) ** 2 // round(1 / ratio**2)
    return Llama4(model_type, checkpoint.special(text), text, ids, canvas, per_tile)
