"""Content identity: the golden preimages, what makes two images the same, and what must keep them apart."""

import io

import pytest
from PIL import Image

from services.kv.identity import array_identity
from services.kv.reason import Reason
from services.media.header import ImageSize
from services.media.pixels import decode_image
from services.media.unusable import Unusable
from tests.unit.media.images import encoded, huge_png, image

LIMIT = 1_000_000


def identity(data: bytes) -> int:
    return decode_image(data, LIMIT).identity


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(1, 2, 0x7A9BBCB11A898630), (6, 4, 0x9788036ABF366C8B), (4, 6, 0x8D01DA131275BBCF)],
)
def test_golden(height: int, width: int, expected: int) -> None:
    """Source: docs/design.md, section 5: shape [H, W, 3], bytes 0, 1, 2, …"""
    made = Image.frombytes("RGB", (width, height), bytes(range(height * width * 3)))
    assert identity(encoded(made)) == expected
    assert identity(encoded(made, "BMP")) == expected
    assert decode_image(encoded(made), LIMIT).size == ImageSize(height, width, "PNG")


class TestTheSameImage:
    def test_in_another_lossless_file(self) -> None:
        made = image()
        same = {
            identity(encoded(made)), identity(encoded(made, compress_level=0)), identity(encoded(made, "BMP")),
            identity(encoded(made, "TIFF")), identity(encoded(made, "WEBP", lossless=True)),
        }  # fmt: skip
        assert len(same) == 1

    @pytest.mark.parametrize("orientation", range(2, 9))
    def test_turned_by_exif_or_in_its_pixels(self, orientation: int) -> None:
        data = encoded(orientation=orientation)
        from PIL import ImageOps

        turned = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        assert identity(data) == identity(encoded(turned)) != identity(encoded())

    def test_grey_and_palette_without_transparency_are_their_rgb(self) -> None:
        grey = image(mode="L")
        assert identity(encoded(grey)) == identity(encoded(grey.convert("RGB")))
        few = image().quantize(16)
        assert identity(encoded(few)) == identity(encoded(few.convert("RGB")))
        assert identity(encoded(image(mode="1"))) == identity(encoded(image(mode="1").convert("RGB")))

    def test_only_the_first_frame_counts(self) -> None:
        one = encoded(image_format="GIF")
        many = encoded(image_format="GIF", save_all=True, append_images=[image(seed=9)])
        assert identity(one) == identity(many)


class TestNeverCoarser:
    """Images an engine could tell apart never share an identity, though their plain RGB is the same."""

    def test_alpha(self) -> None:
        made = [image().convert("RGBA") for _ in range(3)]
        made[1].putalpha(128)
        made[2].putalpha(0)
        assert len({identity(encoded(each)) for each in (image(), *made)}) == 4

    def test_grey_with_alpha(self) -> None:
        clear, opaque = image(mode="LA"), image(mode="LA")
        clear.putalpha(0)
        assert identity(encoded(clear)) != identity(encoded(opaque)) != identity(encoded(image(mode="L")))

    def test_transparent_palette_entries(self) -> None:
        few = image().quantize(16)
        assert len({identity(encoded(few)), *(identity(encoded(few, transparency=entry)) for entry in (0, 3))}) == 3
        assert identity(encoded(few, transparency=b"\x00\xff\x80")) != identity(encoded(few, transparency=0))

    def test_trns_of_rgb_and_grey(self) -> None:
        for made, clear in ((image(), (0, 0, 0)), (image(mode="L"), 0)):
            assert identity(encoded(made)) != identity(encoded(made, transparency=clear))

    def test_sixteen_bits(self) -> None:
        dark = [Image.frombytes("I;16", (2, 1), bytes(samples)) for samples in ((1, 0, 2, 0), (1, 0, 3, 0))]
        assert identity(encoded(dark[0])) != identity(encoded(dark[1]))

    def test_sixteen_bit_rgb_whose_low_bytes_pillow_drops(self) -> None:
        import struct
        import zlib

        from tests.unit.media.images import png_chunk

        def png(low: int) -> bytes:
            header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
            row = zlib.compress(b"\0" + bytes((9, low, 9, low, 9, low)))
            return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", row) + png_chunk(b"IEND", b"")

        assert len({identity(png(1)), identity(png(2)), array_identity((1, 1, 3), bytes((9, 9, 9)))}) == 3

    def test_float_and_cmyk(self) -> None:
        floats = [Image.new("F", (1, 1), value) for value in (0.25, 0.5)]
        assert identity(encoded(floats[0], "TIFF")) != identity(encoded(floats[1], "TIFF"))
        inks = [Image.new("CMYK", (1, 1), value) for value in ((0, 0, 0, 255), (255, 255, 255, 255))]
        assert identity(encoded(inks[0], "TIFF")) != identity(encoded(inks[1], "TIFF"))

    def test_shape(self) -> None:
        wide, tall = (Image.frombytes("RGB", size, bytes(12)) for size in ((4, 1), (1, 4)))
        assert identity(encoded(wide)) != identity(encoded(tall))


class TestWhatCanNotBeDecoded:
    @pytest.mark.parametrize(
        "data",
        [b"", b"<html>", encoded(image_format="JPEG")[:-100], encoded(image_format="JPEG")[:200], encoded()[:-40],
         encoded(image_format="WEBP")[:-10], encoded(image_format="GIF")[:-300]],
    )  # fmt: skip
    def test_says_so(self, data: bytes) -> None:
        with pytest.raises(Unusable) as caught:
            decode_image(data, LIMIT)
        assert caught.value.reason is Reason.DECODE_FAILED

    def test_too_many_pixels_are_not_decoded(self) -> None:
        with pytest.raises(Unusable) as caught:
            decode_image(huge_png(2_000, 2_000), LIMIT)
        assert caught.value.reason is Reason.TOO_LARGE

    def test_a_reason_survives_the_way_back_from_a_process(self) -> None:
        import pickle

        error = pickle.loads(pickle.dumps(Unusable(Reason.TOO_LARGE, "why")))
        assert (error.reason, str(error)) == (Reason.TOO_LARGE, "why")
