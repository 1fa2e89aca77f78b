"""Encoded media to what laying them out needs: an image's size, a video's sampled frames. Errors in vLLM's words."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Mapping
from typing import Any

from PIL import Image, UnidentifiedImageError

from schemas.media import MediaKind
from services.engine_sim.errors import bad_request
from services.engine_sim.video import read_source
from services.kv.sampling import Sampling, Source, sample
from services.layout.shapes import MediaShape

MAX_PIXELS = 178_956_970
"""vLLM's VLLM_MAX_IMAGE_PIXELS."""

DEFAULT_FRAMES = 32
"""Pre-sampled frames taken when the request names no number."""

_TURNED = {5, 6, 7, 8}
_ORIENTATION = 0x0112


def decode_base64(text: str) -> bytes:
    """Strict base64. Raises ApiError."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad_request(f"the data URL's base64 is broken: {error}") from None


def decode_image(data: bytes) -> MediaShape:
    """Size of an image after EXIF transpose; all of it is decoded, as an engine does. Raises ApiError."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise Image.DecompressionBombError(f"{width}x{height}")
            turned = image.getexif().get(_ORIENTATION) in _TURNED
            image.load()
    except Image.DecompressionBombError as error:
        raise bad_request(f"Image dimensions exceed the maximum of {MAX_PIXELS} pixels: {error}") from None
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError) as error:
        raise bad_request(f"Failed to load image: {error}") from None
    if turned:
        width, height = height, width
    return MediaShape(MediaKind.IMAGE, height=height, width=width)


def decode_video(data: bytes, sampling: Sampling) -> MediaShape:
    """The frames the model's loader samples of a video file. Raises ApiError."""
    try:
        source = read_source(data)
        sampled = sample(Source(source.frames, source.fps), sampling)
    except (ValueError, ArithmeticError) as error:
        raise bad_request(str(error)) from None
    return _video(source.height, source.width, list(sampled.indices), sampled.fps)


def decode_frames(text: str, options: Mapping[str, Any]) -> MediaShape:
    """Frames that were sampled by the sender: base64 images with commas between, numbers in ``media_io_kwargs``.

    Raises ApiError.
    """
    limit = options.get("num_frames", DEFAULT_FRAMES)
    if not isinstance(limit, int) or limit == 0:
        raise bad_request("num_frames must be greater than 0 or -1")
    frames = [decode_image(decode_base64(frame)) for frame in text.split(",")]
    frames = frames[:limit] if limit > 0 else frames
    if len({(frame.height, frame.width) for frame in frames}) != 1:
        raise bad_request("all input arrays must have the same shape")
    indices = options.get("frames_indices", list(range(len(frames))))
    if not isinstance(indices, list) or not all(isinstance(index, int) for index in indices):
        raise bad_request("frames_indices must be a list of integers")
    if len(indices) != len(frames):
        raise bad_request(f"frames_indices length ({len(indices)}) must match number of frames sent ({len(frames)})")
    return _video(frames[0].height or 0, frames[0].width or 0, indices, float(options.get("fps", 1)))


def _video(height: int, width: int, indices: list[int], fps: float) -> MediaShape:
    return MediaShape(
        MediaKind.VIDEO, height=height, width=width, frames=len(indices), frame_indices=tuple(indices), fps=fps
    )
