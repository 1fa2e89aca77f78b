"""Videos for tests, made on the spot."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import av
import numpy as np

os.environ.setdefault("SVT_LOG", "1")  # the AV1 encoder tells its life otherwise

ENCODERS = {
    "vp8": "libvpx", "vp9": "libvpx-vp9", "av1": "libsvtav1", "h264": "libx264", "hevc": "libx265", "mpeg4": "mpeg4",
}  # fmt: skip
LOSSLESS = {"vp9": {"lossless": "1"}, "h264": {"qp": "0"}, "hevc": {"x265-params": "lossless=1:log-level=none"}}
QUICK = {
    "vp8": {"cpu-used": "8", "deadline": "realtime"},
    "vp9": {"cpu-used": "8", "deadline": "realtime"},
    "av1": {"preset": "12"},
    "h264": {"preset": "ultrafast"},
    "hevc": {"preset": "ultrafast", "x265-params": "log-level=none"},
    "mpeg4": {},
}


def pixels(index: int, height: int = 48, width: int = 64, seed: int = 0) -> Any:
    """A frame with something to see in it that moves."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack(
        [(columns * 3 + index * 9 + seed) % 256, (rows * 5 + index * 2) % 256, (rows + columns + seed * 7) % 256],
        axis=-1,
    ).astype(np.uint8)


@cache
def clip(
    frames: int = 12,
    *,
    codec: str = "h264",
    container: str = "mp4",
    rate: Fraction = Fraction(10),
    height: int = 48,
    width: int = 64,
    seed: int = 0,
    times: tuple[int, ...] = (),
    pix_fmt: str = "yuv420p",
    options: tuple[tuple[str, str], ...] = (),
    lossless: bool = False,
) -> bytes:
    """A video file. ``times``: presentation times in frames, for a rate that varies."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        given = QUICK[codec] | (LOSSLESS[codec] if lossless else {}) | dict(options)
        stream = out.add_stream(ENCODERS[codec], rate=rate, options=given)
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(pixels(index, height, width, seed), format="rgb24").reformat(
                format=pix_fmt
            )
            frame.pts = times[index] if times else index
            frame.time_base = Fraction(1) / rate
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


def remuxed(data: bytes, container: str) -> bytes:
    """The same packets in another container."""
    file = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(file, "w", format=container) as out:
        stream = source.streams.video[0]
        target = out.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.dts is not None:
                packet.stream = target
                out.mux(packet)
    return file.getvalue()


def spoiled(data: bytes, spans: Sequence[tuple[int, int]]) -> bytes:
    """The bytes with some of them turned around."""
    changed = bytearray(data)
    for start, end in spans:
        changed[start:end] = bytes(255 - byte for byte in changed[start:end])
    return bytes(changed)
