"""The two places where claimed bytes lie: a directory, and an object store behind fsspec."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from services.runtime.errors import ConfigError

_NAME = re.compile(r"[0-9a-f]{32}")
_LEFTOVER_MS = 3_600_000


def _checked(name: str) -> str:
    """A name that can't leave its folder."""
    if not _NAME.fullmatch(name):
        raise ValueError("expected a blob name of 32 hexadecimal digits")
    return name


class DirectoryStore:
    """Files ``<two digits>/<name>`` under a root. Serves the processes of one host."""

    host_only = True

    def __init__(self, root: Path) -> None:
        self._root = root

    def usable(self) -> bool:
        """Whether the folder is there, or can be made, and takes files."""
        with suppress(OSError):
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.access(self._root, os.W_OK | os.X_OK)

    def write(self, name: str, data: bytes) -> None:
        """Put bytes under a name, at once or not at all: readers never see half a file."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def read(self, name: str) -> bytes:
        """The bytes. Raises FileNotFoundError."""
        return self._path(name).read_bytes()

    def age_ms(self, name: str, now_ms: int) -> tuple[int, int] | None:
        """Milliseconds since the last write and the size in bytes; None if there is no such name."""
        try:
            status = self._path(name).stat()
        except FileNotFoundError:
            return None
        return max(0, now_ms - int(status.st_mtime * 1000)), status.st_size

    def sweep(self, before_ms: int) -> int:
        """Remove what was last written before this wall time, and what crashed writers left."""
        removed = 0
        for path in self._root.glob("[0-9a-f][0-9a-f]/*"):
            named = _NAME.fullmatch(path.name) is not None
            if not named and not path.name.startswith(".new-"):
                continue
            limit = before_ms if named else before_ms - _LEFTOVER_MS
            with suppress(FileNotFoundError):
                if path.stat().st_mtime * 1000 < limit:
                    path.unlink()
                    removed += named
        return removed

    def _path(self, name: str) -> Path:
        return self._root / _checked(name)[:2] / name


class ObjectStore:
    """Objects ``<prefix>/<two digits>/<name>`` in anything fsspec knows; S3 and what speaks like it through s3fs."""

    host_only = False

    def __init__(self, url: str) -> None:
        self._filesystem, self._root = _open(url)

    def usable(self) -> bool:
        """Not known without asking the store."""
        return True

    def write(self, name: str, data: bytes) -> None:
        """Put bytes under a name; object stores show an object only when it is whole."""
        self._filesystem.pipe_file(self._path(name), data)

    def read(self, name: str) -> bytes:
        """The bytes. Raises FileNotFoundError."""
        data: bytes = self._filesystem.cat_file(self._path(name))
        return data

    def age_ms(self, name: str, now_ms: int) -> tuple[int, int] | None:
        """Milliseconds since the last write and the size in bytes; None if there is no such name."""
        path = self._path(name)
        try:
            # Another host may have written or swept it: what fsspec remembers of listings does not count.
            self._filesystem.invalidate_cache(path)
            information = self._filesystem.info(path)
        except FileNotFoundError:
            return None
        return max(0, now_ms - self._written_ms(path)), int(information["size"])

    def sweep(self, before_ms: int) -> int:
        """Remove what was last written before this wall time. A lifecycle rule of the bucket does the same, cheaper."""
        removed = 0
        self._filesystem.invalidate_cache()
        for path in self._filesystem.glob(f"{self._root}/??/*"):
            if not _NAME.fullmatch(str(path).rsplit("/", 1)[-1]):
                continue
            with suppress(FileNotFoundError):
                if self._written_ms(path) < before_ms:
                    self._filesystem.rm_file(path)
                    removed += 1
        return removed

    def _written_ms(self, path: str) -> int:
        modified: datetime = self._filesystem.modified(path)
        return int(modified.timestamp() * 1000)

    def _path(self, name: str) -> str:
        return f"{self._root}/{_checked(name)[:2]}/{name}"


def _open(url: str) -> tuple[Any, str]:
    scheme = url.split("://", 1)[0]
    try:
        from fsspec.core import url_to_fs

        filesystem, root = url_to_fs(url)
    except ImportError as error:
        raise ConfigError(
            f"KVROUTE_BLOB_URL names {scheme}:// storage, which needs packages that are not installed ({error}): "
            "install the extra, pip install 'kvroute[s3]', or use a directory"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"KVROUTE_BLOB_URL names {scheme}:// storage, expected a directory or s3://bucket/prefix: {error}"
        ) from error
    return filesystem, str(root).rstrip("/")
