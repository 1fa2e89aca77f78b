"""A real vLLM as a child process: random weights, real processors, scheduler and KV events, on a CPU."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

READY_SECONDS = 900.0


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Vllm:
    """One server. ``home`` holds its virtual environment in ``venv``."""

    home: Path
    model: Path
    logs: Path
    block_size: int = 16
    blocks: int = 520
    http: int = field(default_factory=free_port)
    zmq: int = field(default_factory=free_port)
    replay: int = field(default_factory=free_port)
    lives: int = 0
    _process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Its HTTP server."""
        return f"http://127.0.0.1:{self.http}"

    async def start(self) -> None:
        """Start it and wait until it is healthy. The log is in ``logs``."""
        self.lives += 1
        log = (self.logs / f"vllm-{self.http}-{self.lives}.log").open("wb")
        with log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command(), env=self._environment(), stdout=log, stderr=log, start_new_session=True
            )
        async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as session:
            while True:
                assert self._process.returncode is None, f"vLLM ended: see {log.name}"
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(f"{self.url}/health", timeout=aiohttp.ClientTimeout(total=5)) as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(1)

    async def kill(self) -> None:
        """End it at once, with all its processes."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def _command(self) -> list[str]:
        events = {
            "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{self.zmq}",
            "replay_endpoint": f"tcp://*:{self.replay}", "topic": "",
        }  # fmt: skip
        return [
            "nice", "-n", "5", str(self.home / "venv" / "bin" / "vllm"), "serve", str(self.model),
            "--served-model-name", self.model.name, "--host", "127.0.0.1", "--port", str(self.http),
            "--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "8192",
            "--max-num-seqs", "8", "--max-num-batched-tokens", "8192", "--block-size", str(self.block_size),
            "--num-gpu-blocks-override", str(self.blocks), "--enable-prefix-caching",
            "--limit-mm-per-prompt", '{"image":4,"video":2}', "--kv-events-config", json.dumps(events),
            "--enable-prompt-tokens-details",
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        left_out = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "VIRTUAL_ENV")
        return {
            **{name: value for name, value in os.environ.items() if name not in left_out},
            "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1", "VLLM_CONFIG_ROOT": str(self.home / "config"),
            "VLLM_CACHE_ROOT": str(self.home / "cache"),
        }  # fmt: skip
