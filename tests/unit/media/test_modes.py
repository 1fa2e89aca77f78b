"""Every mode and format people send: read, told apart where anything differs, and one where all pixels are alike."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator

import pytest
from PIL import Image

from services.kv.identity import array_identity
from services.kv.reason import Reason
from services.media import header
from services.media.pixels import decode_image
from services.media.unusable import Unusable
from tests.unit.media.images import encoded, image, png_chunk

LIMIT = 1_000_000
FORMATS = {"JPEG": "JPEG", "PNG": "PNG", "WEBP": "WEBP", "GIF": "GIF", "BMP": "BMP", "TIFF": "TIFF", "AVIF": "AVIF",
           "MPO": "MPO"}  # fmt: skip
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "I", "I;16", "I;16B", "F")
SAMPLES = {"I;16": 2, "I;16B": 2, "I": 4, "F": 4}


def identity(data: bytes) -> int:
    return decode_image(data, LIMIT).identity


def made(mode: str, last: int = 1) -> Image.Image:
    """8 by 6 pixels of a mode; ``last`` is the last byte of the last pixel."""
    if mode in ("P", "PA"):
        found = Image.frombytes("P", (8, 6), bytes(range(47)) + bytes([last]))
        found.putpalette(bytes(range(256)) * 3)
        return found if mode == "P" else found.convert("PA")
    if mode == "1":
        return Image.frombytes("1", (8, 6), b"\xa5" * 5 + bytes([last]))
    if mode == "F":
        return Image.frombytes("F", (8, 6), struct.pack("<48f", *range(47), last))
    size = 48 * SAMPLES.get(mode, len(mode) if mode != "YCbCr" else 3)
    return Image.frombytes(mode, (8, 6), bytes(index % 251 for index in range(size - 1)) + bytes([last]))


def holding() -> Iterator[tuple[str, str]]:
    """Modes and formats that can hold them as they are."""
    for mode in MODES:
        for image_format in FORMATS:
            try:
                data = encoded(made(mode), image_format)
            except (OSError, ValueError, KeyError):
                continue
            with Image.open(io.BytesIO(data)) as opened:
                if opened.mode.rstrip("BLN") == mode.rstrip("BLN"):
                    yield mode, image_format


HOLDING = list(holding())


def test_all_modes_have_a_format_that_holds_them() -> None:
    assert {mode for mode, _ in HOLDING} == {*MODES} - {"RGBX"}
    assert {image_format for _, image_format in HOLDING} == {*FORMATS}


@pytest.mark.parametrize(("mode", "image_format"), HOLDING)
def test_is_read_and_has_its_size(mode: str, image_format: str) -> None:
    found = decode_image(encoded(made(mode), image_format), LIMIT).size
    alone = {"MPO": "JPEG"}.get(image_format, image_format)
    assert (found.height, found.width, found.format) == (6, 8, alone)


@pytest.mark.parametrize(
    ("mode", "image_format"), [(mode, found) for mode, found in HOLDING if found in ("PNG", "BMP", "TIFF")]
)
def test_the_last_byte_of_the_last_pixel_counts(mode: str, image_format: str) -> None:
    first, second = (encoded(made(mode, last), image_format) for last in (1, 2))
    assert identity(first) != identity(second)


@pytest.mark.parametrize("mode", ["I;16", "I;16B"])
@pytest.mark.parametrize("image_format", ["PNG", "TIFF"])
def test_both_bytes_of_sixteen_bits_count(mode: str, image_format: str) -> None:
    whole = bytes(range(96))
    found = {
        identity(encoded(Image.frombytes(mode, (8, 6), whole[:at] + b"\xff" + whole[at + 1 :]), image_format))
        for at in (0, 1, 94, 95)
    }
    assert len(found) == 4


@pytest.mark.parametrize(("colour", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_the_low_byte_of_every_kind_of_png_with_sixteen_bits(colour: int, channels: int) -> None:
    """Pillow itself drops that of colours and alpha."""

    def png(low: int) -> bytes:
        ihdr = struct.pack(">IIBBBBB", 1, 1, 16, colour, 0, 0, 0)
        row = zlib.compress(b"\0" + bytes((9, 9)) * (channels - 1) + bytes((9, low)))
        return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", ihdr) + png_chunk(b"IDAT", row) + png_chunk(b"IEND", b"")

    assert identity(png(1)) != identity(png(2))


class TestHidden:
    """What compositing hides is still there."""

    def test_colours_under_alpha_nought(self) -> None:
        clear = [Image.new("RGBA", (2, 2), (*colour, 0)) for colour in ((1, 2, 3), (1, 2, 4))]
        for image_format, options in (("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True, "exact": True})):
            assert len({identity(encoded(one, image_format, **options)) for one in clear}) == 2

    def test_palette_entries_that_are_clear(self) -> None:
        def png(colour: int) -> bytes:
            found = Image.frombytes("P", (2, 1), b"\x00\x01")
            found.putpalette([colour, 0, 0, 9, 9, 9])
            return encoded(found, transparency=0)

        assert identity(png(1)) != identity(png(2))

    def test_trns_alone(self) -> None:
        for mode, values in (("L", (1, 2)), ("RGB", ((1, 1, 1), (2, 2, 2))), ("1", (0, 1))):
            found = {identity(encoded(made(mode), transparency=value)) for value in values}
            assert len(found | {identity(encoded(made(mode)))}) == 3


class TestOne:
    def test_the_same_pixels_in_png_lossless_webp_and_bmp(self) -> None:
        for mode in ("RGB", "L", "P", "1"):
            plain = made(mode).convert("RGB")
            same = {encoded(made(mode)), encoded(plain), encoded(plain, "WEBP", lossless=True), encoded(plain, "BMP")}
            assert len({identity(data) for data in same}) == 1, mode

    @pytest.mark.parametrize("image_format", ["JPEG", "PNG", "TIFF", "WEBP", "AVIF", "MPO"])
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_orientations(self, image_format: str, orientation: int) -> None:
        """Turned as Pillow turns it, and so engines; the size is that of the upright image."""
        options = {"lossless": True} if image_format == "WEBP" else {}
        data = encoded(image(), image_format, orientation, **options)
        found = decode_image(data, LIMIT)
        sides = (30, 20) if orientation >= 5 else (20, 30)
        assert (found.size.height, found.size.width) == sides

    def test_an_inverted_cmyk_of_adobe_is_upright(self) -> None:
        """Pillow undoes Adobe's inversion while decoding: white paper is no ink."""
        data = encoded(Image.new("CMYK", (8, 8), (0, 0, 0, 0)), "JPEG")
        assert b"Adobe" in data
        with Image.open(io.BytesIO(data)) as opened:
            assert opened.getpixel((0, 0)) == (0, 0, 0, 0)
        assert identity(data) != identity(encoded(Image.new("CMYK", (8, 8), (255, 255, 255, 255)), "JPEG"))

    def test_a_colour_profile_is_left_alone(self) -> None:
        from PIL import ImageCms

        profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
        assert identity(encoded(icc_profile=profile)) == identity(encoded())

    def test_the_first_frame_of_an_animation(self) -> None:
        for image_format in ("GIF", "PNG", "WEBP", "TIFF", "MPO"):
            options = {"lossless": True} if image_format == "WEBP" else {}
            still = "JPEG" if image_format == "MPO" else image_format
            many = encoded(image(), image_format, save_all=True, append_images=[image(seed=9)], **options)
            assert identity(many) == identity(encoded(image(), still, **options)), image_format


class TestHeic:
    def test_is_read_with_the_extra(self) -> None:
        pytest.importorskip("pillow_heif")
        data = encoded(image(64, 48), "HEIF")
        found = decode_image(data, LIMIT)
        assert (found.size.height, found.size.width, found.size.format) == (48, 64, "HEIF")

    def test_says_what_is_missing_without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(header, "HEIF", False)
        with pytest.raises(Unusable, match=r"kvroute\[heic\]") as caught:
            decode_image(b"\0\0\0\x18ftypheic" + b"\0" * 60, LIMIT)
        assert caught.value.reason is Reason.CODEC_UNSUPPORTED


def test_a_hundred_thousand_small_images_have_as_many_identities() -> None:
    draw = random.Random(7)
    two_shades = bytes(byte & 1 for byte in range(256))
    images: set[tuple[int, int, bytes]] = set()
    while len(images) < 100_000:
        height, width = 1 + len(images) % 4, 1 + len(images) // 4 % 4
        data = draw.randbytes(height * width * 3)
        images |= {(height, width, data), (height, width, data.translate(two_shades))}
    assert len({array_identity((height, width, 3), data) for height, width, data in images}) == len(images)
