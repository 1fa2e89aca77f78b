"""Brings whole media: fetched once for all who ask at the same time, decoded, and put where their bytes can travel."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from schemas.media import MediaKind
from schemas.request import Claim
from services.kv.frames import FRAMES_TYPE
from services.kv.identity import frames_identity
from services.kv.reason import Reason
from services.kv.sampling import Sampling
from services.media.data_uri import EMPTY, data_uri
from services.media.fetch import Fetcher, Validators
from services.media.flights import Flights
from services.media.header import ImageSize, Need, check_pixels, looks_complete, measure
from services.media.memory import MemoryBudget
from services.media.pixels import Decoded
from services.media.revalidated import Revalidated
from services.media.unusable import Unusable
from services.media.video import DecodedVideo, VideoBounds
from services.runtime.blobs import Blobs
from services.runtime.offload import run_in_thread
from services.runtime.settings import Settings

_CONTENT_TYPES = {"JPEG": "image/jpeg", "MPO": "image/jpeg", "TIFF": "image/tiff"}


class Decoder(Protocol):
    """What decoding is asked for. Raises Unusable."""

    async def decode(self, data: bytes, max_pixels: int) -> Decoded:
        """An image."""
        ...

    async def decode_video(self, data: bytes, sampling: Sampling, bounds: VideoBounds) -> DecodedVideo:
        """A video."""
        ...

    async def decode_frames(
        self, data: bytes, sampling: Sampling, bounds: VideoBounds, max_bytes: int
    ) -> tuple[DecodedVideo, bytes | None]:
        """A video with its frames, packed; None when they take more bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Want:
    """What is to be learnt of a medium. ``pixels``: an image's content; ``sampling``: a video's.

    ``frames``: the frames that are hashed are kept, to be handed to engines.
    """

    kind: MediaKind
    pixels: bool = False
    sampling: Sampling | None = None
    frames: bool = False

    @property
    def content(self) -> bool:
        """Whether the content is its identity."""
        return self.pixels or self.sampling is not None


@dataclass(frozen=True, slots=True)
class Brought:
    """A medium whose bytes were looked at: what they say, and where they are kept (by claim, or as ``url``)."""

    size_bytes: int
    validators: Validators
    identity: int | None = None
    size: ImageSize | None = None
    video: DecodedVideo | None = None
    claim: Claim | None = None
    frames: Claim | None = None
    url: str | None = None
    reason: Reason | None = None
    detail: str | None = None


class Bringer:
    """Fetches, decodes, keeps. Raises Fenced, Unusable, or Transient when the blob store fails."""

    def __init__(
        self, fetcher: Fetcher, blobs: Blobs, decoder: Decoder, budget: MemoryBudget,
        known: Revalidated[Brought], settings: Settings,
    ) -> None:  # fmt: skip
        self._fetcher = fetcher
        self._blobs = blobs
        self._decoder = decoder
        self._budget = budget
        self._known = known
        self._inline_bytes = settings.blob_inline_bytes
        self._max_pixels = settings.media_max_pixels
        self._frames_bytes = settings.video_frames_max_bytes
        self._video_bounds = VideoBounds(
            settings.media_max_pixels, settings.video_max_pixels, settings.video_decode_seconds
        )
        self._flights: Flights[Hashable, Brought] = Flights()

    async def fetch(self, url: str, key: Hashable, want: Want) -> Brought:
        """The medium at a URL. ``key`` stands for the URL: whoever has the same key gets the same medium."""
        return await self._flights.share((key, want), lambda: self._fetch(url, (key, want), want))

    async def close(self) -> None:
        """Give up what is under way."""
        await self._flights.close()

    async def _fetch(self, url: str, key: Hashable, want: Want) -> Brought:
        known = self._known.get(key)
        if known is not None and known.fresh:
            return known.value
        with self._budget.hold() as hold:
            fetched = await self._fetcher.whole(url, hold, None if known is None else known.validators)
            if fetched.data is None:
                assert known is not None, "nothing was known that could be unchanged"
                self._known.confirm(key, fetched.max_age)
                return known.value
            brought = await self.keep(want, fetched.data, fetched.content_type, fetched.validators)
        if fetched.may_keep:
            self._known.put(key, brought, fetched.validators, fetched.max_age, len(brought.url or ""))
        return brought

    async def keep(self, want: Want, data: bytes, content_type: str, validators: Validators) -> Brought:
        """Look at bytes and put them where they can travel. What can't be read still travels: the engine judges."""
        identity, size, video, frames, reason, detail = None, None, None, None, None, None
        try:
            if want.sampling is not None:
                video, frames = await self._video(data, want.sampling, frames=want.frames)
                identity, content_type = video.identity, video.container.content_type
                identity = identity if frames is None else frames_identity(identity)
            elif want.pixels:
                decoded = await self._decoder.decode(data, self._max_pixels)
                identity, size = decoded.identity, decoded.size
            elif want.kind is MediaKind.IMAGE:
                size = await run_in_thread(_measure_whole, data, self._max_pixels)
        except Unusable as error:
            reason, detail = error.reason, str(error)
        if size is not None:
            content_type = _CONTENT_TYPES.get(size.format, f"image/{size.format.lower()}")
        claim, url = None, EMPTY
        if len(data) > self._inline_bytes:
            claim = await self._blobs.put(data, content_type)
        else:
            url = data_uri(content_type, data)
        return Brought(len(data), validators, identity, size, video, claim, frames, url, reason, detail)

    async def _video(self, data: bytes, sampling: Sampling, *, frames: bool) -> tuple[DecodedVideo, Claim | None]:
        """Decode, and keep the frames if they are wanted, few enough bytes and there is room for them."""
        if not frames:
            return await self._decoder.decode_video(data, sampling, self._video_bounds), None
        video, packed = await self._decoder.decode_frames(data, sampling, self._video_bounds, self._frames_bytes)
        if packed is None:
            return video, None
        with self._budget.hold() as hold:
            try:
                hold.grow(len(packed))
            except Unusable:
                return video, None
            return video, await self._blobs.put(packed, FRAMES_TYPE)


def _measure_whole(data: bytes, max_pixels: int) -> ImageSize:
    size = measure(data, total=len(data))
    if isinstance(size, Need) or not looks_complete(data, size.format):
        raise Unusable(Reason.DECODE_FAILED, "the image is truncated")
    check_pixels(size, max_pixels)
    return size
