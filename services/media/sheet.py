"""A contact sheet: the pixels that were hashed, small, in order, with what is known of each. Pure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from math import ceil, sqrt

from PIL import Image, ImageDraw

SIDE = 240
_LABEL, _LABEL_WIDTH = 16, 96
_GAP = 4
_PAPER, _INK = (255, 255, 255), (0, 0, 0)
MOST = 768
"""Pictures of a sheet; no loader takes more frames."""


def thumbnail(picture: Image.Image) -> Image.Image:
    """A picture as small as it stands on a sheet."""
    small = picture.convert("RGB")
    small.thumbnail((SIDE, SIDE))
    return small


def contact_sheet(pictures: Sequence[tuple[str, Image.Image]]) -> bytes:
    """A PNG with labelled pictures, read like text. Raises ValueError for none or too many."""
    if not 0 < len(pictures) <= MOST:
        raise ValueError(f"{len(pictures)} pictures, expected 1 to {MOST}")
    small = [(label, thumbnail(picture)) for label, picture in pictures]
    width = max(_LABEL_WIDTH, *(picture.width for _, picture in small))
    height = max(picture.height for _, picture in small) + _LABEL
    columns = ceil(sqrt(len(small) * height / width))
    columns = min(len(small), max(1, columns))
    rows = ceil(len(small) / columns)
    sheet = Image.new("RGB", (columns * (width + _GAP) + _GAP, rows * (height + _GAP) + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for number, (label, picture) in enumerate(small):
        left = _GAP + number % columns * (width + _GAP)
        top = _GAP + number // columns * (height + _GAP)
        draw.text((left, top), label, fill=_INK)
        sheet.paste(picture, (left, top + _LABEL))
    out = io.BytesIO()
    sheet.save(out, "PNG")
    return out.getvalue()
