"""The size of an image from its first bytes, as an engine will see it: after EXIF (or XMP) orientation. Pure.

Pillow, which the engines use, is the measure. It looks for orientation in the whole file, so the first bytes alone
are believed only when no orientation can follow: a PNG must show that nothing stands between its last IDAT and IEND,
a WebP must say in its header that it has neither EXIF nor XMP.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from PIL import ExifTags, Image

from services.kv.reason import Reason
from services.media.unusable import Unusable


def _heif_reader() -> bool:
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


HEIF = _heif_reader()
"""Whether HEIC is read: with the extra ``heic``. vLLM refuses HEIC unless it has been given the same reader."""

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF") + (("HEIF",) if HEIF else ())
"""What is opened at all; Pillow's other readers (some start programs) never see a user's bytes."""

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_PNG_ABOUT = (b"eXIf", b"tEXt", b"zTXt", b"iTXt")
_TURNED = (5, 6, 7, 8)
_SAFE_PIXELS = 89_478_485  # Pillow's own bound: above it nothing is decoded only to learn a size
_HEIF = (b"heic", b"heix", b"hevc", b"mif1", b"msf1", b"heim", b"heis")

# Pixels are checked here, against the operator's limit, before anything is decoded; and what Pillow thinks of
# somebody's EXIF is nothing for our log.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


class Need(Enum):
    """What must be read before the size is known."""

    MORE = "more"
    TAIL = "tail"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class ImageSize:
    """Pixels after orientation, and the format's name."""

    height: int
    width: int
    format: str

    @property
    def pixels(self) -> int:
        """Of one frame."""
        return self.height * self.width


def measure(head: bytes, *, total: int | None = None, tail: bytes = b"") -> ImageSize | Need:
    """The size, or what is needed to know it.

    ``total`` is the file's length in bytes if known; ``len(head) == total`` means that ``head`` is the whole file.
    ``tail`` is the end of the file, given after Need.TAIL. Raises Unusable when this is no image that can be read.
    """
    whole = total is not None and len(head) >= total
    if whole and not head:
        raise Unusable(Reason.DECODE_FAILED, "the image is empty")
    if head.startswith(_PNG):
        return _measure_png(head, total, tail, whole)
    if head[:4] == b"RIFF" and (head[8:12] == b"WEBP" or len(head) < 12):
        return _measure_webp(head, whole)
    if head[4:8] == b"ftyp" and head[8:12] in _HEIF and not HEIF and b"avif" not in head[: min(64, _u32(head, 0))]:
        raise Unusable(
            Reason.CODEC_UNSUPPORTED, "the image is HEIF, which is decoded only with the extra kvroute[heic]"
        )
    if head[:4] in (b"II*\0", b"MM\0*") or head[4:8] == b"ftyp":
        return _open(head) if whole else Need.ALL
    if whole:
        return _open(head)
    if len(head) < 32:
        return Need.MORE
    if not _looks_like_image(head):
        raise Unusable(Reason.DECODE_FAILED, "the data is no image of a known format")
    try:
        return _open(head)
    except Unusable:
        return Need.MORE


def check_pixels(size: ImageSize, max_pixels: int) -> None:
    """Raise Unusable (too_large) above the limit."""
    if size.pixels > max_pixels:
        raise Unusable(
            Reason.TOO_LARGE,
            f"image of {size.width}x{size.height} = {size.pixels} pixels, the limit is {max_pixels} "
            "(KVROUTE_MEDIA_MAX_PIXELS)",
        )


def looks_complete(data: bytes, image_format: str) -> bool:
    """Whether a whole file has its end, as far as its format marks one. Truncated images fail in the engine."""
    match image_format:
        case "JPEG" | "MPO":
            return b"\xff\xd9" in data[-4096:] or data.rfind(b"\xff\xd9") > 0
        case "PNG":
            return data.rfind(_PNG_END) > 0
        case "WEBP":
            return len(data) >= int.from_bytes(data[4:8], "little") + 8
        case _:
            return True


def oriented(image: Image.Image) -> tuple[int, int]:
    """(height, width) after orientation of an image that may not be loaded. TIFF sizes are turned by Pillow itself."""
    width, height = image.size
    if image.format != "TIFF":
        # The base class's reader: PNG's own would decode the whole image to look behind it.
        orientation = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
        if orientation in _TURNED:
            return width, height
    return height, width


def _open(data: bytes) -> ImageSize:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.format in ("JPEG", "MPO") and not image.tile:
                raise Unusable(Reason.DECODE_FAILED, "the JPEG ends before its image data")
            height, width = oriented(image)
            return ImageSize(height, width, image.format or "")
    except Unusable:
        raise
    except Image.DecompressionBombError:
        raise Unusable(Reason.TOO_LARGE, "the image has more pixels than engines take") from None
    except Exception as error:  # Pillow raises whatever its readers stumble over
        raise Unusable(Reason.DECODE_FAILED, f"the image can't be read ({type(error).__name__})") from None


def _looks_like_image(head: bytes) -> bool:
    return head.startswith((b"\xff\xd8\xff", b"GIF8", b"BM"))


def _measure_png(head: bytes, total: int | None, tail: bytes, whole: bool) -> ImageSize | Need:
    chunks = list(_png_chunks(head))
    first = next(((start, length) for kind, start, length in chunks if kind == b"IDAT"), None)
    if first is None:
        if whole:
            raise Unusable(Reason.DECODE_FAILED, "the PNG has no image data")
        return Need.MORE
    if any(kind == b"eXIf" for kind, start, _ in chunks if start < first[0]):
        return _open(head)
    if whole:
        late = any(kind in _PNG_ABOUT for kind, start, _ in chunks if start > first[0])
        return _open_loaded(head) if late else _open(head)
    if total is None:
        return Need.ALL
    if first[0] + first[1] + 12 + len(_PNG_END) == total or _ends_with_idat(tail):
        return _open(head)
    return Need.ALL if tail else Need.TAIL


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind, start and data length of each chunk whose header is there."""
    position = len(_PNG)
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        yield kind, position, length
        position += length + 12


def _ends_with_idat(tail: bytes) -> bool:
    """Whether the chunk before IEND is an IDAT: its length field leads exactly to IEND."""
    if not tail.endswith(_PNG_END):
        return False
    end = len(tail) - len(_PNG_END)
    position = end
    while (position := tail.rfind(b"IDAT", 4, position)) >= 0:
        length = int.from_bytes(tail[position - 4 : position], "big")
        if position + 4 + length + 4 == end:
            checksum = int.from_bytes(tail[end - 4 : end], "big")
            return zlib.crc32(tail[position : end - 4]) == checksum
    return False


def _open_loaded(data: bytes) -> ImageSize:
    """For the rare PNG that says something after its pixels: Pillow finds it by decoding."""
    size = _open(data)
    if size.pixels > _SAFE_PIXELS:
        return size
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            image.load()
            height, width = oriented(image)
            return ImageSize(height, width, "PNG")
    except Exception as error:
        raise Unusable(Reason.DECODE_FAILED, f"the image can't be read ({type(error).__name__})") from None


def _measure_webp(head: bytes, whole: bool) -> ImageSize | Need:
    if len(head) < 30:
        if whole:
            raise Unusable(Reason.DECODE_FAILED, "the WebP ends within its header")
        return Need.MORE
    kind = head[12:16]
    if kind == b"VP8X":
        canvas = ImageSize(_u24(head, 27) + 1, _u24(head, 24) + 1, "WEBP")
        orientation_follows = bool(head[20] & 0b1100)  # EXIF or XMP, behind the pixels
        if not orientation_follows or canvas.pixels > _SAFE_PIXELS:
            return canvas
        return _open(head) if whole else Need.ALL
    if kind == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", head, 26)
        return ImageSize(height & 0x3FFF, width & 0x3FFF, "WEBP")
    if kind == b"VP8L" and head[20] == 0x2F:
        bits = int.from_bytes(head[21:25], "little")
        return ImageSize((bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1, "WEBP")
    raise Unusable(Reason.DECODE_FAILED, "the WebP has no image data")


def _u32(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4], "big")


def _u24(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 3], "little")
