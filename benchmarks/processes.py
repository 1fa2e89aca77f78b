"""Child processes of a benchmark: started with a log of their own, watched for a line, measured, ended by their id."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from services.runtime.broker_process import death_with_parent

TICKS = os.sysconf("SC_CLK_TCK")


class Child:
    """One child process in a group of its own, its output in a temporary file. It ends with its parent."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: IO[bytes]) -> None:
        self.name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Child:
        """Start a command with more environment."""
        log = tempfile.NamedTemporaryFile(prefix="kvroute-bench-", suffix=".log")  # noqa: SIM115 - lives with the child
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            preexec_fn=death_with_parent(),
        )
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def output(self) -> str:
        """Everything it has written so far."""
        return Path(self._log.name).read_text("utf-8", errors="replace")

    async def line_with(self, text: str, seconds: float = 60) -> None:
        """Wait until its output holds a text. Raises RuntimeError with its last lines when it ends before that."""
        for _ in range(int(seconds / 0.05)):
            if text in self.output:
                return
            if self._process.returncode is not None:
                break
            await asyncio.sleep(0.05)
        raise RuntimeError(f"{self.name} did not say {text!r}; its last lines:\n{self.output[-3000:]}")

    def cpu_seconds(self) -> float:
        """User and system time of the process and its ended children so far; of living children too."""
        pids = [self._process.pid]
        with contextlib.suppress(OSError):
            pids += map(int, Path(f"/proc/{pids[0]}/task/{pids[0]}/children").read_text().split())
        return sum(map(cpu_seconds, pids))

    async def kill(self) -> None:
        """SIGKILL to the process alone."""
        self._process.kill()
        await self._process.wait()
        self._log.close()

    async def stop(self, seconds: float = 10) -> None:
        """SIGTERM, and SIGKILL to the group when that is not enough."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._process.wait(), seconds)
        self._log.close()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its ended children so far; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS
