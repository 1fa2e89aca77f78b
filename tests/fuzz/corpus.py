"""Whole files to begin with: every format, mode, codec and container that is read."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.unit.media.clips import clip
from tests.unit.media.images import encoded, image

GOLDEN = Path(__file__).parents[1] / "golden/video_files"
_STILLS = (
    ("PNG", ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
    ("JPEG", ("L", "RGB", "CMYK")),
    ("WEBP", ("RGB", "RGBA")),
    ("GIF", ("P",)),
    ("BMP", ("1", "L", "P", "RGB")),
    ("TIFF", ("1", "L", "P", "RGB", "RGBA", "CMYK", "F", "LAB")),
    ("AVIF", ("RGB", "RGBA")),
)


@cache
def images() -> tuple[bytes, ...]:
    """Small images, some animated, turned or with a profile."""
    plain = [encoded(image(24, 18, mode), name) for name, modes in _STILLS for mode in modes]
    turned = [encoded(image(24, 18), name, orientation=6) for name in ("JPEG", "PNG", "WEBP", "TIFF")]
    moving = [
        encoded(image(24, 18), name, save_all=True, append_images=[image(24, 18, seed=5)])
        for name in ("GIF", "PNG", "WEBP", "TIFF", "MPO")
    ]
    packed = [encoded(image(24, 18), "TIFF", compression=kind) for kind in ("tiff_lzw", "jpeg", "tiff_deflate")]
    return (*plain, *turned, *moving, *packed)


@cache
def videos() -> tuple[bytes, ...]:
    """Small videos, and the reference's own files."""
    made = [
        clip(8, codec=codec, container=container)
        for codec, containers in (("h264", ("mp4", "mov", "matroska")), ("hevc", ("mp4",)), ("vp9", ("webm",)),
                                  ("av1", ("mp4", "webm")))
        for container in containers
    ]  # fmt: skip
    return (*made, *(file.read_bytes() for file in sorted(GOLDEN.iterdir()) if file.suffix != ".json"))
