"""Images for tests, made on the spot."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from functools import cache
from typing import Any

from PIL import Image

ORIENTATION = 0x0112


def image(width: int = 30, height: int = 20, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """An image with something to see in it."""
    made = Image.new("RGB", (width, height))
    made.putdata([((x * 7 + seed) % 256, (y * 5) % 256, (x * y) % 256) for y in range(height) for x in range(width)])
    return made if mode == "RGB" else made.convert(mode)


def encoded(made: Image.Image | None = None, image_format: str = "PNG", orientation: int = 0, **options: Any) -> bytes:
    """The bytes of a file."""
    if orientation:
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        options["exif"] = exif
    file = io.BytesIO()
    (made or image()).save(file, image_format, **options)
    return file.getvalue()


def data_uri(data: bytes, content_type: str = "image/png") -> str:
    return f"data:{content_type};base64,{base64.b64encode(data).decode()}"


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@cache
def huge_png(width: int, height: int) -> bytes:
    """A small file that claims, and has, very many white pixels (1 bit each, compressed)."""
    rows = zlib.compressobj(6)
    row = b"\x00" + b"\xff" * ((width + 7) // 8)
    data = b"".join(rows.compress(row) for _ in range(height)) + rows.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")
