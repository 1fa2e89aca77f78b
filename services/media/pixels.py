"""Content identity of an image: its decoded pixels, and what the plain pixels lose. Pure, slow: runs off the loop.

First frame, EXIF-transposed, RGB for plain 8-bit images. For anything with alpha, palette transparency, tRNS,
16 bits, CMYK or float the preimage goes on with mode, raw samples before compositing or scaling, palette and tRNS,
each length-prefixed: engines composite and scale in their own ways, so an identity may be finer, never coarser.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import ExifTags, Image, ImageOps

from services.kv.identity import pieces_identity
from services.kv.reason import Reason
from services.media.header import FORMATS, ImageSize, Need, check_pixels, measure
from services.media.unusable import Unusable

_BAND_PIXELS = 1 << 17
_PLAIN = frozenset({"RGB", "L", "1", "P"})


@dataclass(frozen=True, slots=True)
class Decoded:
    """What decoding found."""

    identity: int
    size: ImageSize


def decode_image(data: bytes, max_pixels: int) -> Decoded:
    """Decode a whole image file and hash its pixels.

    Raises Unusable: too_large before anything is decoded, decode_failed for what is truncated or broken.
    """
    size = measure(data, total=len(data))
    if isinstance(size, Need):
        raise Unusable(Reason.DECODE_FAILED, "the image ends within its header")
    check_pixels(size, max_pixels)
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            # Pillow keeps the upper 8 of 16 bits of colours and of alpha: then only the file itself has them all.
            reduced = ";16" in repr(image.tile) and not image.mode.startswith("I")
            image.load()
            return _hash(upright(image), size.format, data if reduced else None)
    except Image.DecompressionBombError:
        raise Unusable(Reason.TOO_LARGE, "the image has more pixels than engines take") from None
    except Exception as error:  # Pillow raises whatever its readers stumble over
        raise Unusable(Reason.DECODE_FAILED, f"the image can't be decoded ({type(error).__name__})") from None


def upright(image: Image.Image) -> Image.Image:
    """The image as EXIF (or XMP) says it is held; itself where nothing turns it."""
    turned = image.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9)
    return ImageOps.exif_transpose(image) if turned else image


def is_plain(image: Image.Image) -> bool:
    """Whether the RGB pixels say everything an engine could see."""
    return image.mode in _PLAIN and not image.has_transparency_data


def _hash(image: Image.Image, image_format: str, samples: bytes | None) -> Decoded:
    extra = () if samples is None and is_plain(image) else _what_rgb_loses(image, samples)
    identity = pieces_identity((image.height, image.width, 3), _bands(image), extra=extra)
    return Decoded(identity, ImageSize(image.height, image.width, image_format))


def _bands(image: Image.Image) -> Iterator[bytes]:
    """RGB rows, some at a time: touching fresh memory for all of them takes longer than hashing."""
    rows = max(1, _BAND_PIXELS // max(1, image.width))
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(image.height, top + rows)))
        yield (band if band.mode == "RGB" else band.convert("RGB")).tobytes()


def _what_rgb_loses(image: Image.Image, samples: bytes | None) -> tuple[bytes, ...]:
    palette = bytes(image.getpalette("RGBA") or ()) if image.mode in ("P", "PA") else b""
    raw = image.tobytes() if samples is None else samples
    return image.mode.encode(), raw, palette, _transparency(image.info.get("transparency"))


def _transparency(value: object) -> bytes:
    """PNG's tRNS as Pillow gives it: bytes for a palette, a number for grey, three numbers for RGB."""
    if value is None:
        return b""
    return value if isinstance(value, bytes) else repr(value).encode()
