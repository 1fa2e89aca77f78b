"""Everything the media stage would find in one file, for people: by ``kvroute inspect``. Slow, runs off the loop."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field

from PIL import Image

from schemas.media import IdentitySource, MediaItem, MediaKind
from services.kv.reason import Reason
from services.kv.sampling import Sampling
from services.media.container import container_of
from services.media.header import FORMATS, Need, check_pixels, measure
from services.media.pixels import decode_image, upright
from services.media.sheet import thumbnail
from services.media.unusable import Unusable
from services.media.video import VideoBounds, decode_video


@dataclass(slots=True)
class LookedAt:
    """What was found. ``seconds`` are the times of the sampled frames, ``pictures`` what was hashed, made small."""

    kind: MediaKind
    size_bytes: int
    format: str | None = None
    width: int | None = None
    height: int | None = None
    mode: str | None = None
    identity: int | None = None
    total_frames: int | None = None
    fps: float | None = None
    duration: float | None = None
    sampling: str | None = None
    frame_indices: list[int] | None = None
    seconds: list[float] | None = None
    reason: Reason | None = None
    detail: str | None = None
    pictures: list[tuple[str, Image.Image]] = field(default_factory=list)

    def item(self) -> MediaItem:
        """As the layout gets it."""
        return MediaItem(
            kind=self.kind, message=0, part=0, identity=self.identity,
            source=IdentitySource.NONE if self.identity is None else IdentitySource.CONTENT,
            forward=self.reason is None, width=self.width, height=self.height, format=self.format,
            total_frames=self.total_frames, fps=self.fps, duration=self.duration, frame_indices=self.frame_indices,
            frames=None if self.frame_indices is None else len(self.frame_indices), reason=self.reason,
            detail=self.detail,
        )  # fmt: skip


def kind_of(data: bytes) -> MediaKind:
    """Whether bytes are an image or a video, by their first ones."""
    try:
        container_of(data)
    except Unusable:
        return MediaKind.IMAGE
    return MediaKind.VIDEO


def look_at(data: bytes, rule: Callable[[], Sampling], bounds: VideoBounds) -> LookedAt:
    """Decode and describe. ``rule`` gives the model's sampling of videos, or raises Unusable where there is none."""
    found = LookedAt(kind_of(data), len(data))
    try:
        if found.kind is MediaKind.VIDEO:
            found.format = container_of(data).name
            _look_at_video(found, data, rule(), bounds)
        else:
            _look_at_image(found, data, bounds.frame_pixels)
    except Unusable as error:
        found.reason, found.detail = error.reason, str(error)
    return found


def _look_at_image(found: LookedAt, data: bytes, max_pixels: int) -> None:
    size = measure(data, total=len(data))
    if isinstance(size, Need):
        raise Unusable(Reason.DECODE_FAILED, "the image ends within its header")
    found.width, found.height, found.format = size.width, size.height, size.format
    check_pixels(size, max_pixels)
    found.identity = decode_image(data, max_pixels).identity
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        found.mode = image.mode
        found.pictures.append((f"{size.width}x{size.height} {image.mode}", thumbnail(upright(image))))


def _look_at_video(found: LookedAt, data: bytes, sampling: Sampling, bounds: VideoBounds) -> None:
    found.sampling = sampling.name
    shown: dict[int, Image.Image] = {}
    video = decode_video(
        data, sampling, bounds, lambda index, pixels: shown.update({index: thumbnail(Image.fromarray(pixels))})
    )
    found.format, found.identity = video.container.name, video.identity
    found.width, found.height = video.width, video.height
    found.total_frames, found.fps, found.duration = video.frames, video.fps, video.duration
    found.frame_indices, found.seconds = list(video.indices), video.seconds
    found.pictures = [
        (f"{index}: {seconds:.3f} s", shown[index]) for index, seconds in zip(video.indices, video.seconds, strict=True)
    ]
