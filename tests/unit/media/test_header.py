"""The first bytes say the size, or say that they can't; what they say is what decoding shows."""

import io
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from services.kv.reason import Reason
from services.media.fetch import TAIL_BYTES
from services.media.header import FORMATS, ImageSize, Need, check_pixels, looks_complete, measure
from services.media.unusable import Unusable
from tests.unit.media.images import encoded, huge_png, image, png_chunk

TURNABLE = ("JPEG", "PNG", "WEBP", "TIFF", "AVIF")


def decoded_size(data: bytes) -> tuple[int, int]:
    """As an engine sees it."""
    shown = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    return shown.height, shown.width


def measured(data: bytes) -> tuple[int, int]:
    size = measure(data, total=len(data))
    assert isinstance(size, ImageSize)
    return size.height, size.width


@pytest.mark.parametrize("image_format", FORMATS)
@pytest.mark.parametrize("orientation", range(9))
def test_whole_files_measure_as_they_decode(image_format: str, orientation: int) -> None:
    turned = orientation if image_format in TURNABLE else 0
    data = encoded(image_format=image_format, orientation=turned)
    assert measured(data) == decoded_size(data)
    if turned >= 5:
        assert measured(data) == (30, 20)


@pytest.mark.parametrize("image_format", FORMATS)
@pytest.mark.parametrize("orientation", [0, 6])
def test_a_part_of_the_file_never_lies(image_format: str, orientation: int) -> None:
    data = encoded(image(120, 80), image_format, orientation if image_format in TURNABLE else 0)
    truth = decoded_size(data)
    for end in range(0, len(data), max(1, len(data) // 60)):
        found = measure(data[:end], total=len(data))
        if found is Need.TAIL:
            found = measure(data[:end], total=len(data), tail=data[-TAIL_BYTES:])
        if isinstance(found, ImageSize):
            assert (found.height, found.width) == truth


@pytest.mark.parametrize(
    ("image_format", "enough"), [("JPEG", 1024), ("PNG", 256), ("WEBP", 64), ("GIF", 1024), ("BMP", 128)]
)
def test_a_few_bytes_are_enough(image_format: str, enough: int) -> None:
    data = encoded(image(400, 300), image_format)
    found = measure(data[:enough], total=len(data), tail=data[-TAIL_BYTES:])
    assert isinstance(found, ImageSize)
    assert (found.height, found.width) == (300, 400)


MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "TIFF": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F"),
    "WEBP": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F"),
    "JPEG": ("1", "L", "RGB", "CMYK"),
    "GIF": ("1", "L", "LA", "P", "RGB", "RGBA"),
}
"""What Pillow writes of each format."""


@pytest.mark.parametrize(("image_format", "mode"), [(name, mode) for name, modes in MODES.items() for mode in modes])
def test_modes(mode: str, image_format: str) -> None:
    made = Image.new("I;16", (30, 20)) if mode == "I;16" else image(mode=mode)
    assert measured(encoded(made, image_format)) == (20, 30)


class TestPng:
    def about(self, late: bytes = b"", early: bytes = b"") -> bytes:
        """A PNG with chunks before and after its image data."""
        plain = encoded(image(40, 20))
        start, end = plain.index(b"IDAT") - 4, len(plain) - 12
        return plain[:start] + early + plain[start:end] + late + plain[end:]

    def exif(self, orientation: int) -> bytes:
        made = Image.Exif()
        made[0x0112] = orientation
        return png_chunk(b"eXIf", made.tobytes()[6:])

    def xmp(self, orientation: int) -> bytes:
        text = f'<x:xmpmeta><rdf:Description tiff:Orientation="{orientation}"/></x:xmpmeta>'.encode()
        return png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + text)

    def profile(self, orientation: int) -> bytes:
        made = Image.Exif()
        made[0x0112] = orientation
        data = made.tobytes()
        return png_chunk(
            b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(f"\nexif\n{len(data):8}\n{data.hex()}\n".encode())
        )

    @pytest.mark.parametrize("where", ["early", "late"])
    @pytest.mark.parametrize("kind", ["exif", "xmp", "profile"])
    def test_orientation_counts_wherever_it_stands(self, where: str, kind: str) -> None:
        data = self.about(**{where: getattr(self, kind)(6)})
        assert measured(data) == decoded_size(data) == (40, 20)

    def test_the_head_alone_waits_for_the_end(self) -> None:
        data = self.about(late=self.exif(6))
        head = data[:100]
        assert measure(head, total=len(data)) is Need.TAIL
        assert measure(head, total=len(data), tail=data[-TAIL_BYTES:]) is Need.ALL
        assert measure(head, total=None) is Need.ALL

    def test_one_idat_that_reaches_the_end_needs_no_tail(self) -> None:
        data = self.about()
        assert measure(data[:100], total=len(data)) == ImageSize(20, 40, "PNG")

    def test_many_idats_are_proven_by_the_last(self) -> None:
        data = encoded(image(300, 200), compress_level=0)
        assert data.count(b"IDAT") > 1
        assert measure(data[:100], total=len(data)) is Need.TAIL
        assert measure(data[:100], total=len(data), tail=data[-TAIL_BYTES:]) == ImageSize(200, 300, "PNG")

    def test_a_lying_tail_is_not_believed(self) -> None:
        data = self.about(late=png_chunk(b"teST", b"\0\0\0\x04IDATxxxx"))
        assert measure(data[:100], total=len(data), tail=data[-60:]) is Need.ALL


class TestWebp:
    def test_exif_needs_the_whole_file(self) -> None:
        data = encoded(image(60, 40), "WEBP", 6)
        assert measure(data[:200], total=len(data)) is Need.ALL
        assert measured(data) == (60, 40)

    @pytest.mark.parametrize("options", [{}, {"lossless": True}, {"icc_profile": b"x" * 200}])
    def test_without_it_thirty_bytes_do(self, options: dict[str, object]) -> None:
        data = encoded(image(60, 40), "WEBP", **options)
        assert measure(data[:30], total=len(data)) == ImageSize(40, 60, "WEBP")


class TestGif:
    def test_the_first_frame_may_be_larger_than_the_screen(self) -> None:
        data = bytearray(encoded(image_format="GIF"))
        data[6:10] = b"\x05\0\x05\0"
        assert measured(bytes(data)) == decoded_size(bytes(data)) == (20, 30)

    def test_the_first_of_many(self) -> None:
        data = encoded(image_format="GIF", save_all=True, append_images=[image(10, 10)])
        assert measured(data) == (20, 30)


def test_mpo_is_a_jpeg_with_more_frames() -> None:
    data = encoded(image(60, 40), "MPO", save_all=True, append_images=[image(60, 40, seed=9)])
    assert measured(data) == (40, 60)


def test_a_jpeg_behind_a_long_profile_asks_for_more() -> None:
    data = encoded(image_format="JPEG", icc_profile=b"p" * 40_000)
    assert measure(data[:4096], total=len(data)) is Need.MORE
    assert measure(data[: 42 << 10], total=len(data)) == ImageSize(20, 30, "JPEG")


@pytest.mark.parametrize("data", [b"<html>" * 20, b"%PDF-1.4" + b"x" * 99, b"%!PS-Adobe" + b"x" * 99, b"\0" * 99])
def test_what_is_no_image_is_said_at_once(data: bytes) -> None:
    with pytest.raises(Unusable) as caught:
        measure(data, total=10_000_000)
    assert caught.value.reason is Reason.DECODE_FAILED


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(st.binary(max_size=200), st.sampled_from(["", "JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"]))
@settings(max_examples=300, deadline=None)
def test_any_bytes_have_a_size_or_a_reason(noise: bytes, image_format: str) -> None:
    head = encoded(image(8, 8), image_format)[:40] if image_format else b""
    data = head + noise
    for total in (None, len(data), len(data) + 1000):
        found: object
        try:
            found = measure(data, total=total)
        except Unusable as error:
            found = error.reason
        known = (Reason.DECODE_FAILED, Reason.TOO_LARGE, Reason.CODEC_UNSUPPORTED)
        assert isinstance(found, ImageSize) or found in known or total != len(data)


def test_pixels_are_checked_before_decoding() -> None:
    data = huge_png(10_000, 10_000)
    size = measure(data, total=len(data))
    assert isinstance(size, ImageSize)
    with pytest.raises(Unusable, match="KVROUTE_MEDIA_MAX_PIXELS") as caught:
        check_pixels(size, 89_000_000)
    assert caught.value.reason is Reason.TOO_LARGE
    check_pixels(size, 100_000_000)


def test_what_engines_refuse_is_too_large_whatever_the_setting() -> None:
    data = huge_png(20_000, 20_000)
    with pytest.raises(Unusable, match="engines") as caught:
        measure(data, total=len(data))
    assert caught.value.reason is Reason.TOO_LARGE


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP"])
def test_cut_files_are_seen_to_be_cut(image_format: str) -> None:
    data = encoded(image(80, 60), image_format)
    assert looks_complete(data, image_format)
    assert not looks_complete(data[:-20], image_format)
