"""Small video files for probes: grey pictures in MPEG-4, which every engine's decoder knows."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
from PIL import Image


@dataclass(frozen=True, slots=True)
class Clip:
    """A clip to be made: size in pixels, number of frames, frames a second."""

    frames: int
    height: int
    width: int
    fps: int = 4

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.frames} frames of {self.width}x{self.height} at {self.fps} fps"


def mp4(clip: Clip) -> bytes:
    """The clip as a file. Its frames are alike, so it takes a few kilobytes whatever its size."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=clip.fps)
        stream.width, stream.height, stream.pix_fmt = clip.width, clip.height, "yuv420p"
        stream.time_base = Fraction(1, clip.fps)
        shade = np.full((clip.height, clip.width, 3), 96, np.uint8)
        for number in range(clip.frames):
            frame = av.VideoFrame.from_ndarray(shade, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return buffer.getvalue()


def mp4_uri(clip: Clip) -> str:
    """The clip as a data: URI."""
    return "data:video/mp4;base64," + base64.b64encode(mp4(clip)).decode()


def png_frame(clip: Clip) -> bytes:
    """One of its frames, without loss."""
    buffer = io.BytesIO()
    Image.new("RGB", (clip.width, clip.height), (96, 96, 96)).save(buffer, "PNG")
    return buffer.getvalue()
