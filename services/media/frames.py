"""The very frames of a video that were hashed, without loss, for engines that take frames. Slow, runs off the loop."""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image

from services.kv.frames import pack_frames
from services.kv.sampling import Sampling
from services.media.video import DecodedVideo, Pixels, VideoBounds, decode_video

_FAST = 1
"""PNG's level of compression: the frames live for a day and travel once or twice."""


class FrameKeeper:
    """Keeps frames as PNG, as long as they fit: of what takes more none is kept."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._kept: dict[int, bytes] = {}

    def __call__(self, index: int, pixels: Pixels) -> None:
        """The pixels of a frame that is hashed. One may come again: the file is walked through a second time."""
        if self._left < 0 or index in self._kept:
            return
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG", compress_level=_FAST)
        self._kept[index] = buffer.getvalue()
        self._left -= len(self._kept[index])
        if self._left < 0:
            self._kept.clear()

    def packed(self, indices: Sequence[int]) -> bytes | None:
        """These frames in this order; None when they did not fit."""
        if self._left < 0:
            return None
        return pack_frames(self._kept[index] for index in indices)


def decode_with_frames(
    data: bytes, sampling: Sampling, bounds: VideoBounds, max_bytes: int
) -> tuple[DecodedVideo, bytes | None]:
    """A video's numbers and identity, and its frames if they fit. Raises Unusable."""
    keeper = FrameKeeper(max_bytes)
    video = decode_video(data, sampling, bounds, keeper)
    return video, keeper.packed(video.indices)
