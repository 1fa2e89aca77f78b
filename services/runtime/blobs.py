"""Claim checks: bytes too large for a record are kept by their content hash, and the record carries a claim.

The name is the 128-bit BLAKE2b of the bytes: whoever names a blob has seen its content, and nobody can put other
bytes under a name that is in use (docs/decisions/0017-claim-checks.md says why this is not XXH3). Two stores: a
directory of one host, and any object store through fsspec (extra ``s3``).
"""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from schemas.request import Claim
from services.runtime.blob_stores import DirectoryStore, ObjectStore
from services.runtime.clock import Clock, SystemClock
from services.runtime.errors import KvrouteError, Transient
from services.runtime.offload import run_in_thread
from services.runtime.settings import Settings

_NAME = re.compile(r"[0-9a-f]{32}")
_SCHEME = "blob:"
REFRESH_FRACTION = 8
"""Bytes put again are renewed once they are older than ttl/8, and swept once older than ttl + ttl/8."""


class BlobGone(KvrouteError):
    """The bytes of a claim are not there (expired, swept, another host's directory) or are not what was put."""


class BlobStore(Protocol):
    """Where named bytes lie. Blocking: Blobs calls it in threads. Names are 32 hexadecimal digits."""

    host_only: bool

    def usable(self) -> bool:
        """Whether writing can work, as far as can be told without trying the network."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Put bytes under a name, at once or not at all."""
        ...

    def read(self, name: str) -> bytes:
        """The bytes. Raises FileNotFoundError."""
        ...

    def age_ms(self, name: str, now_ms: int) -> tuple[int, int] | None:
        """Milliseconds since the last write and the size in bytes; None if there is no such name."""
        ...

    def sweep(self, before_ms: int) -> int:
        """Remove what was last written before this wall time. How many were removed."""
        ...


def blob_name(data: bytes) -> str:
    """Content address of bytes: 32 hexadecimal digits."""
    return blake2b(data, digest_size=16).hexdigest()


class Blobs:
    """Puts and gets claimed bytes."""

    def __init__(self, url: str, ttl_seconds: int, *, clock: Clock | None = None) -> None:
        """``url`` is a directory (plain path or ``file://``) or an fsspec URL such as ``s3://bucket/prefix``."""
        self._store = open_store(url)
        self._ttl_ms = ttl_seconds * 1000
        self._clock = clock or SystemClock()

    @classmethod
    def of(cls, settings: Settings, *, clock: Clock | None = None) -> Blobs:
        """The store the settings name; by default the directory ``blobs`` under data_dir."""
        url = settings.blob_url or str(settings.data_dir / "blobs")
        return cls(url, settings.blob_ttl_seconds, clock=clock)

    @property
    def description(self) -> str:
        """For readiness: whether other hosts can read what this one puts."""
        return "blobs (a directory: this host only)" if self._store.host_only else "blobs (object store)"

    def usable(self) -> bool:
        """Whether bytes can be put there now, as far as can be told without trying the network."""
        return self._store.usable()

    async def put(self, data: bytes, content_type: str = "") -> Claim:
        """Keep bytes for at least the time to live and return their claim. Raises Transient when the store fails."""
        now_ms = self._clock.now_ms()
        try:
            name = await run_in_thread(self._put, data, now_ms)
        except OSError as error:
            raise Transient(f"the blob store could not keep {len(data)} bytes: {error.strerror or error}") from error
        return Claim(
            uri=_SCHEME + name, size=len(data), content_type=content_type, expires_ms=now_ms + self._ttl_ms
        )

    async def get(self, claim: Claim) -> bytes:
        """The bytes of a claim, proven to be those that were put. Raises BlobGone, or Transient."""
        name = claim.uri.removeprefix(_SCHEME)
        if not _NAME.fullmatch(name):
            raise BlobGone("expected a claim of the form blob:<32 hexadecimal digits>, found another one")
        try:
            return await run_in_thread(self._get, name, claim.size)
        except FileNotFoundError:
            raise BlobGone(
                f"{claim.uri} is not in the blob store: it expired, or it lies in another host's directory "
                "(several hosts need KVROUTE_BLOB_URL=s3://…)"
            ) from None
        except OSError as error:
            raise Transient(f"the blob store could not read {claim.uri}: {error.strerror or error}") from error

    async def sweep(self) -> int:
        """Remove what is past its time to live, whoever put it. How many were removed."""
        keep_ms = self._ttl_ms + self._ttl_ms // REFRESH_FRACTION
        return await run_in_thread(self._store.sweep, self._clock.now_ms() - keep_ms)

    def _put(self, data: bytes, now_ms: int) -> str:
        name = blob_name(data)
        known = self._store.age_ms(name, now_ms)
        if known is None or known[0] > self._ttl_ms // REFRESH_FRACTION or known[1] != len(data):
            self._store.write(name, data)
        return name

    def _get(self, name: str, size: int) -> bytes:
        data = self._store.read(name)
        if len(data) != size or blob_name(data) != name:
            raise BlobGone(
                f"{_SCHEME}{name} is damaged: expected {size} bytes of that hash, found {len(data)} bytes; "
                "it is written anew when the same content is put again after it was removed"
            )
        return data


def open_store(url: str) -> BlobStore:
    """The store behind a URL. Raises ConfigError when its packages are missing."""
    if url.startswith("file://"):
        return DirectoryStore(Path(url.removeprefix("file://")))
    if "://" not in url:
        return DirectoryStore(Path(url))
    return ObjectStore(url)
