"""A broker as a child process: free ports, its own log file, and never an orphan.

The child dies with its parent, however that ends: on Linux the kernel sees to it, elsewhere a watchdog process does.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from services.runtime.errors import KvrouteError

_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 16 << 10
_LOOPBACK = "127.0.0.1"
_WATCHDOG = """
import os, signal, sys, time
parent, child = int(sys.argv[1]), int(sys.argv[2])
while os.getppid() == parent:
    time.sleep(0.2)
try:
    os.kill(child, signal.SIGKILL)
except ProcessLookupError:
    pass
"""


class BrokerFailed(KvrouteError):
    """A broker did not come up. The message carries the end of its log."""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now; all are held at once, so they differ."""
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.append(sock)
            sock.bind((_LOOPBACK, 0))
        return [int(sock.getsockname()[1]) for sock in held]
    finally:
        for sock in held:
            sock.close()


def check_free(port: int) -> None:
    """Raise BrokerFailed when somebody listens on the port: we would talk to them and not to our child."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((_LOOPBACK, port))
        except OSError as error:
            raise BrokerFailed(f"port {port} can't be used ({error.strerror}): choose another") from None


class BrokerProcess:
    """One child process that listens on a port.

    Without ``log_path`` its log is a file without a name, so that nothing is left behind, however we end.
    """

    def __init__(self, name: str, log_path: Path | None = None) -> None:
        self.name = name
        self.log_path = log_path
        self._log: BinaryIO | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def spawn(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start the child. Raises BrokerFailed when the program is missing."""
        self._close_log()
        self._log = self._open_log()
        # The kernel's signal comes when the *thread* that started the child ends: start brokers on a thread that
        # lives as long as the process.
        try:
            # A session of its own: Ctrl-C goes to us, and we stop the child in order.
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
                preexec_fn=death_with_parent(),
            )
        except OSError as error:
            self._close_log()
            raise BrokerFailed(f"{self.name} could not be started: {error}") from None
        if sys.platform != "linux":
            self._watchdog = subprocess.Popen(
                [sys.executable, "-c", _WATCHDOG, str(os.getpid()), str(self._process.pid)], start_new_session=True
            )

    async def wait_listening(self, port: int, seconds: float) -> None:
        """Return when the port accepts connections. Raises BrokerFailed when the child ends or time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            if self._process is None or self._process.poll() is not None:
                raise BrokerFailed(f"{self.name} ended while starting. {self.tail()}")
            try:
                _, writer = await asyncio.open_connection(_LOOPBACK, port)
            except OSError:
                if loop.time() > deadline:
                    found = f"{self.name} does not listen on {port} after {seconds:.0f} s"
                    raise BrokerFailed(f"{found}. {self.tail()}") from None
                await asyncio.sleep(0.01)
            else:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
                return

    async def stop(self, ask: signal.Signals, seconds: float) -> None:
        """Ask the child to end, then make it. Returns when it is gone."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                process.send_signal(ask)
            if not await _gone(process, seconds):
                process.kill()
                await _gone(process, 10.0)
        self._close_log()
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.kill()
            watchdog.wait()

    def kill(self) -> None:
        """SIGKILL, to see what survives. Returns when the child is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def tail(self, lines: int = 5) -> str:
        """The end of the child's log, for error messages."""
        if self._log is None or self._log.closed:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")
        last = " | ".join(line.strip() for line in text.splitlines()[-lines:])
        place = f" ({self.log_path})" if self.log_path is not None else ""
        return f"Its log{place} ends: {last}" if last else f"Its log{place} is empty."

    def _open_log(self) -> BinaryIO:
        if self.log_path is None:
            return cast(BinaryIO, tempfile.TemporaryFile("w+b", buffering=0))
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        return cast(BinaryIO, self.log_path.open("w+b", buffering=0))

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


async def _gone(process: subprocess.Popen[bytes], seconds: float) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while process.poll() is None:
        if loop.time() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def death_with_parent() -> Callable[[], None] | None:
    """What the child does before it becomes the broker: ask the kernel for SIGKILL when the parent dies.

    The library is loaded here, in the parent: between fork and exec nothing should be loaded.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()
    signals = int(signal.SIGKILL)

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signals, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return before_exec
