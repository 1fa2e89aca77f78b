"""Gets the media a request names: data: URIs, http(s) URLs, and files below an allowed folder."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import aiohttp
from xxhash import xxh3_128_digest

from schemas.media import MediaKind
from services.engine_sim.decode import decode_base64, decode_frames, decode_image, decode_video
from services.engine_sim.errors import ApiError, bad_request, internal, unprocessable
from services.engine_sim.media_cache import Lru
from services.kv.sampling import Sampling
from services.layout.shapes import MediaShape

REMEMBERED_URIS = 2048


@dataclass(frozen=True, slots=True)
class Loaded:
    """A decoded medium: its layout's numbers, and 64 hexadecimal digits that stand for its encoded bytes."""

    shape: MediaShape
    digest: str


class MediaLoader:
    """Loads media. A data: URI it has seen is not decoded again; a URL is fetched every time, as an engine does."""

    def __init__(
        self,
        sampling: Sampling,
        *,
        allowed_path: Path | None = None,
        fetch_seconds: float = 5.0,
        max_bytes: int = 256 << 20,
    ) -> None:
        self._sampling = sampling
        self._allowed_path = None if allowed_path is None else allowed_path.resolve()
        self._fetch_seconds = fetch_seconds
        self._max_bytes = max_bytes
        self._seen: Lru[bytes, Loaded] = Lru(REMEMBERED_URIS)
        self._session: aiohttp.ClientSession | None = None

    async def load(self, kind: MediaKind, url: str, options: Mapping[str, Any]) -> Loaded:
        """Fetch and decode one medium. ``options`` are its modality's ``media_io_kwargs``. Raises ApiError."""
        if url[:5].lower() == "data:":
            return await self._load_data(kind, url, options)
        data = await self._bytes_of(url)
        return await asyncio.to_thread(self._decode, kind, data)

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _load_data(self, kind: MediaKind, url: str, options: Mapping[str, Any]) -> Loaded:
        key = xxh3_128_digest(f"{kind}{sorted(options.items())!r}{url}".encode("utf-8", "surrogatepass"))
        if (known := self._seen.get(key)) is not None:
            return known
        loaded = await asyncio.to_thread(self._decode_uri, kind, url, options)
        self._seen.put(key, loaded)
        return loaded

    def _decode_uri(self, kind: MediaKind, url: str, options: Mapping[str, Any]) -> Loaded:
        header, comma, payload = url[5:].partition(",")
        if not comma:
            raise bad_request(f"Invalid data URL {url[:32]!r}: missing ',' separator.")
        media_type, _, encoding = header.rpartition(";")
        if encoding != "base64" or not media_type:
            raise ApiError(501, "Only base64 data URLs are supported for now.", "NotImplementedError")
        if kind is MediaKind.VIDEO and media_type.partition(";")[0].lower() == "video/jpeg":
            return Loaded(decode_frames(payload, options), _digest(payload.encode("utf-8", "surrogatepass")))
        return self._decode(kind, decode_base64(payload))

    def _decode(self, kind: MediaKind, data: bytes) -> Loaded:
        shape = decode_image(data) if kind is MediaKind.IMAGE else decode_video(data, self._sampling)
        return Loaded(shape, _digest(data))

    async def _bytes_of(self, url: str) -> bytes:
        try:
            scheme = urlsplit(url).scheme.lower()
        except ValueError as error:
            raise unprocessable(f"Failed to fetch media from URL: {error}", "image_url") from None
        if scheme in ("http", "https"):
            return await self._fetch(url)
        if scheme == "file":
            return await asyncio.to_thread(self._read, url)
        raise bad_request("The URL must be either a HTTP, data or file URL.")

    async def _fetch(self, url: str) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._fetch_seconds))
        try:
            async with self._session.get(url) as response:
                if response.status >= 500 or response.status in (408, 429):
                    raise internal(f"{response.status}, message={response.reason!r}, url={url!r}")
                if response.status >= 400:
                    raise unprocessable(f"Failed to fetch media from URL: HTTP {response.status} error", "image_url")
                data = await response.content.read(self._max_bytes + 1)
                while len(data) <= self._max_bytes and (more := await response.content.readany()):
                    data += more
        except (aiohttp.InvalidURL, ValueError):
            raise unprocessable("Failed to fetch media from URL: Invalid URL", "image_url") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise internal(f"{type(error).__name__}: {error}") from None
        if len(data) > self._max_bytes:
            raise unprocessable(f"Failed to fetch media from URL: more than {self._max_bytes} bytes", "image_url")
        return data

    def _read(self, url: str) -> bytes:
        if self._allowed_path is None:
            raise internal("Cannot load local files without `--allowed-local-media-path`.")
        parts = urlsplit(url)
        path = Path(unquote(parts.netloc + parts.path))
        if self._allowed_path not in path.resolve().parents:
            raise bad_request(
                f"The file path {path} must be a subpath of `--allowed-local-media-path {self._allowed_path}`."
            )
        try:
            return path.read_bytes()
        except OSError as error:
            raise internal(str(error)) from None


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=32).hexdigest()
