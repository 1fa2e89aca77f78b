"""LLaVA-NeXT (v1.6): tiles in the best fitting arrangement; padding is dropped, every row ends in a newline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.layout.families.family import Expansion, run
from services.layout.families.image_only import ImageFamily
from services.layout.families.llava import ClipTower, image_token, read_tower
from services.layout.families.parameters import Checkpoint, UnusableFamily, same

Size = tuple[int, int]
"""Height and width."""


def best_resolution(height: int, width: int, pinpoints: Sequence[Size]) -> Size:
    """The pinpoint that keeps most of the image's pixels, then the one that wastes least, then the first."""
    best, best_pixels, least_waste = pinpoints[0], -1, 0
    for tall, wide in pinpoints:
        scale = min(wide / width, tall / height)
        pixels = min(int(width * scale) * int(height * scale), width * height)
        waste = tall * wide - pixels
        if pixels > best_pixels or (pixels == best_pixels and waste < least_waste):
            best, best_pixels, least_waste = (tall, wide), pixels, waste
    return best


def unpadded(height: int, width: int, rows: int, columns: int) -> Size:
    """Rows and columns of features that are not padding; either may be 0 for very thin images.

    The reference rounds to 7 places before it truncates.
    """
    if width / height > columns / rows:
        inner = int(round(height * (columns / width), 7))
        rows -= 2 * ((rows - inner) // 2)
    else:
        inner = int(round(width * (rows / height), 7))
        columns -= 2 * ((columns - inner) // 2)
    return rows, columns


@dataclass(frozen=True)
class LlavaNext(ImageFamily):
    """Layout of ``llava_next``: one run of ``<image>``."""

    tower: ClipTower
    pinpoints: tuple[Size, ...]

    def expand_image(self, height: int, width: int) -> Expansion:
        """Features of the tiles with a newline for each row, and those of the whole image."""
        tall, wide = best_resolution(height, width, self.pinpoints)
        size = self.tower.image_size
        rows, columns = unpadded(height, width, self.tower.grid * (tall // size), self.tower.grid * (wide // size))
        tokens = rows * columns + rows + self.tower.features
        return Expansion(run(self.image_token, tokens), tokens)


def build(model_type: str, checkpoint: Checkpoint) -> LlavaNext:
    """The layout of a checkpoint. Raises UnusableFamily."""
    tower = read_tower(checkpoint)
    pinpoints = checkpoint.config.get("image_grid_pinpoints")
    processed = checkpoint.folder.image_processor.get("image_grid_pinpoints")
    same("image_grid_pinpoints", ("config.json", pinpoints), ("preprocessor_config.json", processed))
    if not isinstance(pinpoints, list) or not pinpoints or not all(_usable(point, tower) for point in pinpoints):
        raise UnusableFamily(f"config.json has no usable image_grid_pinpoints: found {pinpoints!r}"[:300])
    sizes = tuple((tall, wide) for tall, wide in pinpoints)
    return LlavaNext(model_type, *image_token(checkpoint), tower, sizes)


def _usable(point: object, tower: ClipTower) -> bool:
    if not isinstance(point, list) or len(point) != 2:
        return False
    return all(isinstance(side, int) and side > 0 and side % tower.image_size == 0 for side in point)
