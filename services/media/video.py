"""Content identity of a video: the frames its model sees. Slow, runs off the loop: one decoding pass over the file.

Numbers are the engine's loader's (container.py); decoding verifies them. Where it finds another count, an error or a
frame that does not fit, there is no identity: never one from damaged data.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import av
import numpy as np
import numpy.typing as npt
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation, VideoReformatter

from services.kv.identity import VideoDigest
from services.kv.reason import Reason
from services.kv.sampling import Sampled, Sampling, Source, sample
from services.media.container import Claimed, Container, claims, container_of, opened
from services.media.unusable import Unusable

_TO_RGB = Interpolation.BICUBIC
"""As OpenCV converts. Exact arithmetic would take 15 times as long, and the engine has none either."""

_END_FRAMES = 1.5
"""An estimated duration that reaches this far beyond the last frame is that of a whole file."""

Pixels = npt.NDArray[np.uint8]
Show = Callable[[int, Pixels], None]
"""Given the index of a sampled frame and its pixels."""


@dataclass(frozen=True, slots=True)
class VideoBounds:
    """Limits of one video: pixels of a frame, of all frames together, and seconds of decoding."""

    frame_pixels: int
    total_pixels: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DecodedVideo:
    """What decoding found. ``frames`` in all; ``indices`` are those that were hashed; ``duration`` in seconds."""

    identity: int
    container: Container
    height: int
    width: int
    frames: int
    fps: float
    indices: tuple[int, ...]

    @property
    def duration(self) -> float:
        """Frames over rate: what the engine's loader calls it."""
        return self.frames / self.fps

    @property
    def seconds(self) -> list[float]:
        """When each hashed frame stands in the source."""
        return [index / self.fps for index in self.indices]


class _Recount(Exception):
    """The file is whole and has fewer frames than its duration says: the engine's loader finds that too."""

    def __init__(self, frames: int) -> None:
        self.frames = frames


def decode_video(data: bytes, sampling: Sampling, bounds: VideoBounds, show: Show | None = None) -> DecodedVideo:
    """Decode a whole video file and hash the frames that are sampled.

    Raises Unusable: too_large before memory is taken, codec_unsupported, decode_failed for what is damaged,
    video_metadata_ambiguous for what the engine may count otherwise.
    """
    until = time.monotonic() + bounds.seconds
    container = container_of(data)
    frames: int | None = None
    while True:
        try:
            return _Pass(container, sampling, bounds, until, show).run(data, frames)
        except _Recount as recount:
            if frames is not None:
                raise _ambiguous(f"the video has {recount.frames} frames, then {frames}") from None
            frames = recount.frames


class _Pass:
    """One walk over the file."""

    def __init__(
        self, container: Container, sampling: Sampling, bounds: VideoBounds, until: float, show: Show | None
    ) -> None:
        self._container = container
        self._sampling = sampling
        self._bounds = bounds
        self._until = until
        self._show = show
        self._to_rgb = VideoReformatter()
        self._size = (0, 0)
        self._count = 0
        self._last_seconds = 0.0

    def run(self, data: bytes, frames: int | None) -> DecodedVideo:
        """``frames``: how many there are, if that is known better than from the container."""
        with opened(data, self._container, self._bounds.frame_pixels) as (file, stream):
            claimed = claims(file, stream)
            source = Source(claimed.frames if frames is None else frames, claimed.fps)
            self._check_total(source.frames, stream.codec_context.width * stream.codec_context.height)
            sampled = _sampled(source, self._sampling)
            try:
                identity = self._walk(file, stream, source, sampled)
            except av.error.FFmpegError as error:
                what = f"the video is damaged after frame {self._count} ({type(error).__name__})"
                raise Unusable(Reason.DECODE_FAILED, what) from None
            except (MemoryError, OverflowError, ValueError, ArithmeticError) as error:
                raise Unusable(Reason.DECODE_FAILED, f"the video can't be decoded ({type(error).__name__})") from None
        self._verify(source.frames, claimed, known=frames is not None)
        assert identity is not None, "as many frames as were counted hold all indices"
        height, width = self._size
        return DecodedVideo(identity, self._container, height, width, source.frames, source.fps, sampled.indices)

    def _walk(
        self, file: av.container.InputContainer, stream: av.VideoStream, source: Source, sampled: Sampled
    ) -> int | None:
        """Hash the sampled frames on the way; None when not all of them were there."""
        wanted = iter(sampled.indices)
        awaited = next(wanted, None)
        digest: VideoDigest | None = None
        for packet in file.demux(stream):
            if packet.is_corrupt:
                raise Unusable(Reason.DECODE_FAILED, f"the video is damaged after frame {self._count}")
            for frame in packet.decode():
                self._take_note(frame)
                if self._count - 1 != awaited:
                    continue
                pixels = self._pixels(frame)
                if digest is None:
                    digest = _digest(sampled, source, *self._size)
                digest.add(pixels.reshape(-1).data)
                if self._show is not None:
                    self._show(awaited, pixels)
                awaited = next(wanted, None)
        return None if digest is None or awaited is not None else digest.identity()

    def _take_note(self, frame: VideoFrame) -> None:
        """Count a frame. Raises Unusable for one that ends exactness."""
        self._count += 1
        if time.monotonic() > self._until:
            raise Unusable(
                Reason.DECODE_FAILED,
                f"the video takes over {self._bounds.seconds:g} s to decode (KVROUTE_VIDEO_DECODE_SECONDS)",
            )
        if frame.is_corrupt:
            raise Unusable(Reason.DECODE_FAILED, f"frame {self._count - 1} of the video is damaged")
        if frame.rotation % 90:
            raise _ambiguous(f"the video is turned by {frame.rotation} degrees")
        turned = frame.rotation % 180 != 0
        size = (frame.width, frame.height) if turned else (frame.height, frame.width)
        if self._count == 1:
            self._size = size
        elif size != self._size:
            raise _ambiguous(f"the size of the video changes at frame {self._count - 1}")
        self._check_total(self._count, frame.width * frame.height)
        if frame.time is not None:
            self._last_seconds = max(self._last_seconds, frame.time)

    def _check_total(self, frames: int, pixels: int) -> None:
        if frames * pixels > self._bounds.total_pixels:
            raise Unusable(
                Reason.TOO_LARGE,
                f"video of {frames} frames with {pixels} pixels, the limit is {self._bounds.total_pixels} together "
                "(KVROUTE_VIDEO_MAX_PIXELS)",
            )

    def _pixels(self, frame: VideoFrame) -> Pixels:
        """RGB of a frame, upright."""
        rgb = self._to_rgb.reformat(frame, format="rgb24", interpolation=_TO_RGB, threads=1)
        pixels = np.rot90(np.asarray(rgb.to_ndarray(), np.uint8), frame.rotation // 90 % 4)
        return np.ascontiguousarray(pixels)

    def _verify(self, frames: int, claimed: Claimed, *, known: bool) -> None:
        """Raises Unusable unless decoding found what the engine counts; _Recount where that is another number."""
        if self._count == frames:
            if frames == 1:
                raise _ambiguous("the video has one frame: engines may read none of it")
            return
        if not self._count:
            raise Unusable(Reason.DECODE_FAILED, "no frame of the video can be read")
        # One frame fewer may be the header's rounding, and the engine then keeps the header's number.
        whole = claimed.seconds - self._last_seconds <= _END_FRAMES / claimed.fps
        if claimed.estimated and not known and 1 < self._count < frames - 1 and whole:
            raise _Recount(self._count)
        raise _ambiguous(f"the video says it has {frames} frames, {self._count} can be read")


def _digest(sampled: Sampled, source: Source, height: int, width: int) -> VideoDigest:
    return VideoDigest(
        len(sampled.indices), height, width,
        source_fps=source.fps, source_duration=source.frames / source.fps, sampled_timestamps=sampled.seconds,
    )  # fmt: skip


def _sampled(source: Source, sampling: Sampling) -> Sampled:
    try:
        return sample(source, sampling)
    except (ValueError, ArithmeticError) as error:
        raise _ambiguous(f"the engine's loader can't sample the video: {error}") from None


def _ambiguous(what: str) -> Unusable:
    return Unusable(Reason.VIDEO_METADATA_AMBIGUOUS, what)
