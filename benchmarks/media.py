"""Content identities of a picture and a clip, beside what merely decoding them takes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial

import av
import numpy as np
from PIL import Image

from benchmarks.measure import Row, alternate, microseconds_of
from services.kv.sampling import Loader, Sampling
from services.media.pixels import decode_image
from services.media.video import VideoBounds, decode_video

RUNS = 9
PIXELS = 100_000_000
CLIP_SECONDS, RATE, HEIGHT, WIDTH = 10, 25, 360, 640


def rows() -> Iterator[Row]:
    """A 1080p JPEG; ten seconds of 640x360 by each loader."""
    jpeg, clip = picture(), video()
    value, floor = alternate(
        partial(microseconds_of, partial(decode_image, jpeg, PIXELS)),
        partial(microseconds_of, partial(pillow, jpeg)),
        runs=RUNS,
    )
    yield Row("identity of a 1080p JPEG", "µs", value, floor, "Pillow decoding it")
    bounds = VideoBounds(PIXELS, 100 * PIXELS, 60.0)
    for loader in Loader:
        value, floor = alternate(
            partial(microseconds_of, partial(decode_video, clip, Sampling.usual(loader), bounds)),
            partial(microseconds_of, partial(one_pass, clip)),
            runs=RUNS,
        )
        name = f"identity of {CLIP_SECONDS} s of {WIDTH}x{HEIGHT} H.264, frames by {loader}"
        yield Row(name, "µs", value, floor, "one pass of PyAV")


def picture() -> bytes:
    """A 1080p JPEG with soft noise."""
    noise = np.random.default_rng(1).integers(0, 255, (270, 480, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((1920, 1080)).save(file, "JPEG", quality=85)
    return file.getvalue()


def video() -> bytes:
    """A clip of soft noise that moves."""
    noise = np.random.default_rng(2).integers(0, 255, (45, 80, 3), dtype=np.uint8)
    still = np.asarray(Image.fromarray(noise).resize((WIDTH, HEIGHT)))
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=RATE, options={"preset": "veryfast"})
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuv420p"
        for number in range(CLIP_SECONDS * RATE):
            pixels = np.ascontiguousarray(np.roll(still, 3 * number, axis=1))
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        out.mux(stream.encode(None))
    return file.getvalue()


def pillow(data: bytes) -> None:
    """The floor of a picture."""
    with Image.open(io.BytesIO(data)) as image:
        image.load()


def one_pass(data: bytes) -> int:
    """The floor of a clip: every frame decoded, none looked at."""
    with av.open(io.BytesIO(data), "r") as file:
        return sum(1 for _ in file.decode(file.streams.video[0]))
