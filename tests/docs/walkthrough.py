"""Runs a page as a reader would: one terminal for what stays running, one for the rest, on free ports."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from services.runtime.broker_process import free_ports
from tests.docs.blocks import ROOT, Block

READY_SECONDS = 90.0
BLOCK_SECONDS = 120.0


class Walkthrough:
    """A folder and ports of its own. Shell blocks share their exports, as lines typed into one terminal do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = folder / "exports.sh"
        self._state.write_text("")
        self._running: list[tuple[Block, subprocess.Popen[bytes], Path]] = []
        gateway, broker = free_ports(2)
        self._places = {
            "127.0.0.1:8000": f"127.0.0.1:{gateway}",
            "127.0.0.1:9092": f"127.0.0.1:{broker}",
            ".kvroute/audit.sqlite3": str(folder / "audit.sqlite3"),
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KVROUTE_")}
        self._environment = kept | {
            "KVROUTE_GATEWAY_PORT": str(gateway),
            "KVROUTE_KAFKA_BOOTSTRAP": f"127.0.0.1:{broker}",
            "KVROUTE_DATA_DIR": str(folder / "data"),
            "KVROUTE_DATABASE_URL": f"sqlite+aiosqlite:///{folder}/audit.sqlite3",
            "ARGS": f"--kafka-port {broker} --speedup 20",
            "PATH": f"{self._tools()}{os.pathsep}{os.environ['PATH']}",
        }

    def run(self, block: Block) -> str:
        """Run a block and return what it printed. Raises AssertionError when it fails."""
        if block.until is not None:
            return self._start(block, block.until)
        process = subprocess.Popen(
            self._command(block), cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, remarks = process.communicate(timeout=BLOCK_SECONDS)
            ended = f"ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, remarks = process.communicate()
            ended = f"went on for {BLOCK_SECONDS:.0f} s"
        running = "\n".join(_tail(log) for _, _, log in self._running)
        assert process.returncode == 0, f"{block.where} {ended}:\n{block.text}\n{output}\n{remarks}\n{running}"
        return output

    def close(self) -> None:
        """Ctrl-C for what is running. Raises AssertionError when it does not end well by that."""
        for block, process, log in reversed(self._running):
            if process.poll() is not None:
                continue  # whoever waited for it has said so
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise AssertionError(f"{block.where} goes on after Ctrl-C:\n{_tail(log)}") from None

    def _start(self, block: Block, until: str) -> str:
        log = self._folder / f"background-{len(self._running)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command(block), cwd=ROOT, env=self._environment, stdout=output, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._running.append((block, process, log))
        give_up = time.monotonic() + READY_SECONDS
        while until not in log.read_text(errors="replace"):
            assert process.poll() is None, f"{block.where} ended before it said {until!r}:\n{_tail(log)}"
            assert time.monotonic() < give_up, f"{block.where} did not say {until!r}:\n{_tail(log)}"
            time.sleep(0.1)
        return log.read_text(errors="replace")

    def _command(self, block: Block) -> list[str]:
        text = block.text
        for written, actual in self._places.items():
            text = text.replace(written, actual)
        if block.language == "python":
            return [sys.executable, "-c", text]
        return ["bash", "-euo", "pipefail", "-c", f". {self._state}\n{text}\nexport -p > {self._state}"]

    def _tools(self) -> Path:
        """A folder of commands a page uses and a small machine may lack."""
        folder = self._folder / "bin"
        folder.mkdir()
        if shutil.which("sqlite3") is None:
            script = folder / "sqlite3"
            script.write_text(
                f"#!{sys.executable}\nimport sqlite3, sys\n"
                "file, query = [word for word in sys.argv[1:] if word != '-box']\n"
                "for row in sqlite3.connect(file).execute(query):\n"
                "    print('|'.join('' if cell is None else str(cell) for cell in row))\n"
            )
            script.chmod(0o755)
        return folder


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])
