"""Images to sizes, and errors in the engine's words."""

from __future__ import annotations

import base64
import io
import struct
import zlib

import pytest
from PIL import Image

from services.engine_sim.decode import decode_base64, decode_frames, decode_image, decode_video
from services.engine_sim.errors import ApiError
from services.kv.sampling import Loader, Sampling


def encoded(width: int, height: int, form: str = "PNG", orientation: int | None = None, mode: str = "RGB") -> bytes:
    image = Image.new(mode, (width, height))
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, form, exif=exif)
    return buffer.getvalue()


def png_of_size(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
def test_an_image_has_its_size(form: str) -> None:
    shape = decode_image(encoded(40, 30, form))
    assert (shape.height, shape.width) == (30, 40)


@pytest.mark.parametrize(("orientation", "size"), [(1, (30, 40)), (3, (30, 40)), (6, (40, 30)), (8, (40, 30))])
def test_exif_turns_an_image(orientation: int, size: tuple[int, int]) -> None:
    shape = decode_image(encoded(40, 30, "JPEG", orientation))
    assert (shape.height, shape.width) == size


@pytest.mark.parametrize(
    "data", [b"", b"<html>not found</html>", encoded(40, 30, "JPEG")[:200], encoded(40, 30)[:60]], ids=len
)
def test_what_is_no_whole_image_is_refused(data: bytes) -> None:
    with pytest.raises(ApiError, match="Failed to load image") as error:
        decode_image(data)
    assert error.value.status == 400


def test_too_many_pixels_are_refused_before_they_are_decoded() -> None:
    with pytest.raises(ApiError, match="exceed the maximum of 178956970 pixels"):
        decode_image(png_of_size(20_000, 20_000))


def test_base64_is_strict() -> None:
    assert decode_base64("AAAA") == b"\0\0\0"
    with pytest.raises(ApiError, match="base64 is broken"):
        decode_base64("AA*A")


def frames(*sizes: tuple[int, int]) -> str:
    return ",".join(base64.b64encode(encoded(*size)).decode() for size in sizes)


def test_frames_the_sender_sampled_are_taken_as_they_are() -> None:
    shape = decode_frames(frames((40, 30), (40, 30)), {"fps": 25.0, "frames_indices": [0, 12], "num_frames": 2})
    assert (shape.height, shape.width, shape.fps, shape.frame_indices) == (30, 40, 25.0, (0, 12))


def test_without_a_number_the_list_is_cut_at_32() -> None:
    assert decode_frames(frames(*[(8, 8)] * 33), {}).frames == 32
    assert decode_frames(frames(*[(8, 8)] * 33), {"num_frames": -1}).frames == 33


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ([(8, 8)], {"num_frames": 0}, "num_frames must be greater"),
        ([(8, 8), (9, 8)], {}, "same shape"),
        ([(8, 8)], {"frames_indices": "0"}, "list of integers"),
        ([(8, 8)], {"frames_indices": [0, 1]}, r"length \(2\) must match number of frames sent \(1\)"),
    ],
)
def test_frames_that_do_not_fit_together_are_refused(
    sizes: list[tuple[int, int]], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ApiError, match=message):
        decode_frames(frames(*sizes), options)


def test_what_is_no_video_is_refused() -> None:
    with pytest.raises(ApiError, match="Could not open video stream"):
        decode_video(b"<html>", Sampling.usual(Loader.QWEN3_VL))
