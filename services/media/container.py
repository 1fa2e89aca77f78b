"""What a video file's container says: how many frames, how fast, how large. As the engine's OpenCV loader takes it.

Only the containers people send are opened, each by its own reader: a file never chooses the reader, since some of
them (playlists, concatenations) open whatever files and addresses they are told to.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor, isfinite

import av
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream

from services.kv.reason import Reason
from services.media.unusable import Unusable

CODECS = frozenset({"vp8", "vp9", "av1", "h264", "hevc"})

_MATROSKA = b"\x1aE\xdf\xa3"
_ATOMS = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
_STILL = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1")
_OTHERS = (b"RIFF", b"FLV", b"OggS", b"GIF8", b"\x30\x26\xb2\x75", b"\x00\x00\x01\xba", b"\x00\x00\x01\xb3", b"#EXTM3U")
_TINY_SECONDS = 0.000025
"""Durations below are none: OpenCV's own bound."""

_MOST_FRAMES = 1 << 31


@dataclass(frozen=True, slots=True)
class Container:
    """A kind of file: FFmpeg's reader, our name for it, and the type it travels with."""

    reader: str
    name: str
    content_type: str


MP4 = Container("mp4", "MP4", "video/mp4")
MOV = Container("mov", "MOV", "video/quicktime")
WEBM = Container("matroska", "WEBM", "video/webm")
MKV = Container("matroska", "MKV", "video/x-matroska")


@dataclass(frozen=True, slots=True)
class Claimed:
    """What the container claims. ``estimated``: frames are duration times rate, since it has no count."""

    frames: int
    estimated: bool
    fps: float
    seconds: float


def container_of(data: bytes) -> Container:
    """The kind of a file by its first bytes, whatever it is called. Raises Unusable."""
    if data.startswith(_MATROSKA):
        return WEBM if b"webm" in data[:64] else MKV
    if data[4:8] in _ATOMS:
        if data[4:8] != b"ftyp":
            return MOV
        if data[8:12] in _STILL:
            raise Unusable(Reason.CODEC_UNSUPPORTED, "the video is a still image file")
        return MOV if data[8:12] == b"qt  " else MP4
    if data.startswith(_OTHERS) or data[:1] == b"\x47":
        raise Unusable(Reason.CODEC_UNSUPPORTED, "the video's container is not read here, expected MP4, MOV, WebM, MKV")
    raise Unusable(Reason.DECODE_FAILED, "the data is no video of a known container" if data else "the video is empty")


@contextmanager
def opened(data: bytes, kind: Container, max_pixels: int) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The file and its one video stream, ready to be decoded. Raises Unusable, or what FFmpeg raises while decoding."""
    options = {"max_pixels": str(max_pixels)}
    try:
        file = av.open(io.BytesIO(data), "r", format=kind.reader, options=options)
    except Exception as error:  # FFmpeg's errors are of many kinds
        raise Unusable(Reason.DECODE_FAILED, f"the video can't be opened ({type(error).__name__})") from None
    with file:
        stream = _only_stream(file)
        codec = stream.codec_context
        pixels = codec.width * codec.height
        if pixels > max_pixels:
            raise Unusable(
                Reason.TOO_LARGE,
                f"video of {codec.width}x{codec.height} = {pixels} pixels a frame, the limit is {max_pixels} "
                "(KVROUTE_MEDIA_MAX_PIXELS)",
            )
        # Damage must not be painted over: an identity is never made from it.
        codec.options = {**options, "err_detect": "crccheck+bitstream+buffer+explode+careful"}
        yield file, stream


def claims(file: InputContainer, stream: VideoStream) -> Claimed:
    """The numbers the engine begins with. Raises Unusable when there are none."""
    fps = float(stream.average_rate or 0)
    seconds = (file.duration or 0) / av.time_base
    if seconds < _TINY_SECONDS and stream.duration and stream.time_base:
        seconds = float(stream.duration * stream.time_base)
    if not isfinite(fps) or fps <= 0:
        raise Unusable(Reason.VIDEO_METADATA_AMBIGUOUS, "the video has no frame rate")
    if stream.frames > 0:
        return Claimed(stream.frames, False, fps, seconds)
    frames = floor(seconds * fps + 0.5)
    if not 0 < frames < _MOST_FRAMES:
        raise Unusable(Reason.VIDEO_METADATA_AMBIGUOUS, "the video has neither a number of frames nor a duration")
    return Claimed(frames, True, fps, seconds)


def _only_stream(file: InputContainer) -> VideoStream:
    streams = file.streams.video
    if not streams:
        raise Unusable(Reason.DECODE_FAILED, "the file has no video stream")
    stream = streams[0]
    if stream.codec_context is None:
        raise Unusable(Reason.CODEC_UNSUPPORTED, "the video's codec is unknown")
    if len(streams) > 1 or stream.disposition & Disposition.attached_pic:
        raise Unusable(Reason.VIDEO_METADATA_AMBIGUOUS, f"the file has {len(streams)} video streams, expected one")
    codec = stream.codec_context.codec.canonical_name
    if codec not in CODECS:
        wanted = ", ".join(sorted(CODECS))
        raise Unusable(Reason.CODEC_UNSUPPORTED, f"the video's codec is {codec}, expected one of {wanted}")
    return stream
