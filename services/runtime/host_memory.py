"""Bytes handed from one process of a host to another in memory: small files in ``/dev/shm``, taken once, soon gone.

Nothing that is kept here is needed: who finds nothing does the work itself. What a process leaves behind that was
killed is swept by whoever comes next.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from uuid import uuid4

from services.runtime.errors import ConfigError
from services.runtime.settings import Settings


class HostMemory:
    """A folder in memory, of one user on one host, shared by its processes. Blocking, for threads."""

    def __init__(
        self, folder: Path, *, most_bytes: int, seconds: float, now: Callable[[], float] = time.time
    ) -> None:
        """All that is kept is no more than ``most_bytes`` and no older than ``seconds``; ``now`` is wall time.

        Raises ConfigError when the folder can't be made, or is not this user's alone.
        """
        self._folder = folder
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._now = now
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
        except OSError as error:
            raise ConfigError(f"{folder} can't be used as shared memory: {error.strerror}") from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ConfigError(f"{folder} is not a folder of this user alone: remove it, or name another one")
        self.sweep()

    @classmethod
    def of(cls, settings: Settings) -> HostMemory | None:
        """Where renderings are handed over; None where they are not. Raises ConfigError."""
        if not settings.render_handover_bytes:
            return None
        folder = settings.render_handover_dir or Path(f"/dev/shm/kvroute-{os.geteuid()}")
        return cls(folder, most_bytes=settings.render_handover_bytes, seconds=settings.render_handover_seconds)

    def put(self, name: str, data: bytes) -> bool:
        """Keep bytes until they are taken or too old; False when there is no room."""
        part = self._folder / f".{uuid4().hex}"
        with self._alone():
            self._sweep()
            if sum(size for _, size, _ in self._files()) + len(data) > self._most_bytes:
                return False
            try:
                with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(data)
                os.utime(part, (self._now(), self._now()))
                part.replace(self._folder / _file(name))
            except OSError:
                part.unlink(missing_ok=True)
                return False
        return True

    def take(self, name: str) -> bytes | None:
        """The bytes, for the first who asks; None if there are none, or no longer."""
        path = self._folder / _file(name)
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                # Whoever removes the name has the bytes to himself.
                path.unlink()
                kept = self._now() - os.fstat(file.fileno()).st_mtime <= self._seconds
                return file.read() if kept else None
        except OSError:
            return None

    def sweep(self) -> None:
        """Remove what is too old, whoever left it."""
        with self._alone():
            self._sweep()

    def _sweep(self) -> None:
        oldest = self._now() - self._seconds
        for path, _, written in self._files():
            if written < oldest:
                path.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[Path, int, float]]:
        for entry in list(os.scandir(self._folder)):
            with suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                yield Path(entry.path), found.st_size, found.st_mtime

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One at a time in all processes; the lock of one that was killed is free."""
        lock = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def request_name(tenant: str | None, request_id: str) -> str:
    """What a request's bytes are called: as the engine's X-Request-Id, which has the attempt behind it."""
    return f"{tenant}/{request_id}" if tenant else request_id


def _file(name: str) -> str:
    return blake2b(name.encode(), digest_size=16).hexdigest()
