"""How many batches of KV events a second one agent follows to Kafka: ``python -m benchmarks.kv_events``.

An engine's outside (HTTP and ZMQ, nothing behind it) publishes batches of 16 new blocks and takes back as many older
ones, as an engine under eviction does. The agent is a process of its own beside the embedded broker; its CPU seconds
and memory are read from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from aiohttp import web

from services.runtime.admin import create_topics
from services.runtime.embedded import EmbeddedBroker
from services.runtime.settings import Settings

BLOCKS, BLOCK_SIZE = 16, 16
HELD_BATCHES = 2_000
"""Batches whose blocks the engine's cache holds: 32,000 blocks."""

METRICS = (
    'vllm:num_requests_running{engine="0"} 1.0\nvllm:cache_config_info{block_size="16",num_gpu_blocks="32000"} 1\n'
)


class Outside:
    """What an agent sees of an engine."""

    def __init__(self) -> None:
        self.sent = 0
        self.url = ""
        self._pub = zmq.asyncio.Context.instance().socket(zmq.PUB)
        self._pub.setsockopt(zmq.SNDHWM, 100_000)
        self._port = self._pub.bind_to_random_port("tcp://127.0.0.1")
        self._held: deque[list[int]] = deque()

    async def serve(self) -> web.AppRunner:
        """Answer the agent's questions."""
        answers: dict[str, Any] = {
            "/health": {}, "/version": {"version": "0.32.0"}, "/v1/models": {"data": [{"id": "m", "parent": None}]},
            "/kv_event_sources": {"0": {"enable_kv_cache_events": True, "publisher": "zmq",
                                        "endpoint": f"tcp://*:{self._port}"}},
        }  # fmt: skip
        server = web.Application()

        async def answer(request: web.Request) -> web.Response:
            if request.path == "/metrics":
                return web.Response(text=METRICS)
            return web.json_response(answers[request.path])

        for path in (*answers, "/metrics"):
            server.router.add_get(path, answer)
        runner = web.AppRunner(server, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def publish(self, rate: int, seconds: float) -> None:
        """So many batches a second."""
        begun, first = time.monotonic(), self.sent
        while (passed := time.monotonic() - begun) < seconds:
            while self.sent - first < passed * rate:
                await self._pub.send_multipart([b"", self.sent.to_bytes(8, "big"), self._batch(self.sent)])
                self.sent += 1
            await asyncio.sleep(0.005)

    def _batch(self, number: int) -> bytes:
        hashes = [number * BLOCKS + block + 1 for block in range(BLOCKS)]
        self._held.append(hashes)
        events: list[dict[str, Any]] = []
        if len(self._held) > HELD_BATCHES:
            gone = self._held.popleft()
            events = [{"type": "BlockRemoved", "block_hashes": [one], "medium": "GPU"} for one in reversed(gone)]
        tokens = [number % 100_000, *range(BLOCKS * BLOCK_SIZE - 1)]
        events.append({
            "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "token_ids": tokens,
            "block_size": BLOCK_SIZE, "lora_id": None, "medium": "GPU", "extra_keys": [None] * BLOCKS,
        })  # fmt: skip
        return msgspec.msgpack.encode([time.time(), events, 0])


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def megabytes(pid: int) -> float:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def measure(rate: int, seconds: float) -> dict[str, float]:
    """Run it. ``followed`` is what the agent says it has taken of what was sent."""
    outside = Outside()
    runner = await outside.serve()
    with tempfile.TemporaryDirectory() as folder:
        broker = EmbeddedBroker(None)
        bootstrap = await broker.start()
        await create_topics(Settings(kafka_bootstrap=bootstrap, kafka_profile="embedded"))
        environment = {
            **os.environ, "KVROUTE_KAFKA_BOOTSTRAP": bootstrap, "KVROUTE_KAFKA_PROFILE": "embedded",
            "KVROUTE_WORKER_ID": "bench", "KVROUTE_WORKER_ENGINE_URL": outside.url, "KVROUTE_DATA_DIR": folder,
            "KVROUTE_HEALTH_PORT": str(port := 19_431), "KVROUTE_LOG_LEVEL": "error",
        }  # fmt: skip
        command = [sys.executable, "-m", "services.cli.main", "run", "agent"]
        agent = await asyncio.create_subprocess_exec(*command, env=environment)
        try:
            await _ready(port)
            await outside.publish(rate, 15)  # fills the engine's cache first: memory must be flat from then on
            memory, cpu, sent, begun = megabytes(agent.pid), cpu_seconds(agent.pid), outside.sent, time.monotonic()
            followed = await _followed(port)
            await outside.publish(rate, seconds)
            passed = time.monotonic() - begun
            used, grown = cpu_seconds(agent.pid) - cpu, megabytes(agent.pid) - memory
            took = await _followed(port) - followed
            await asyncio.sleep(3)
            return {
                "batches a second sent": round((outside.sent - sent) / passed, 1),
                "batches a second followed": round(took / passed, 1),
                "cores": round(used / passed, 3),
                "cores per 1,000 batches a second": round(used / took * 1000, 3),
                "memory MB": round(memory, 1), "memory growth MB": round(grown, 1),
                "sent": outside.sent, "followed": await _followed(port),
            }  # fmt: skip
        finally:
            agent.terminate()
            await agent.wait()
            await broker.stop()
            await runner.cleanup()


async def _get(port: int, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def _ready(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if (await _get(port, "/readyz"))[0] == 200:
                    return
            except OSError:
                pass
            await asyncio.sleep(0.2)


async def _followed(port: int) -> float:
    lines = (await _get(port, "/metrics"))[1].splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith("kvroute_agent_event_batches{")), 0.0)


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    sys.stdout.write(json.dumps(asyncio.run(measure(given.rate, given.seconds)), indent=2) + "\n")


if __name__ == "__main__":
    main()
