"""KV events over ZMQ: a PUB socket for the stream, a ROUTER socket that gives past batches again."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import zmq
import zmq.asyncio

from services.engine_sim.events import KvEvent, encode_batch

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


@dataclass(frozen=True, slots=True)
class EventSource:
    """What ``/kv_event_sources`` tells of one rank."""

    endpoint: str
    replay_endpoint: str | None
    topic: str = ""
    enable_kv_cache_events: bool = True
    publisher: str = "zmq"
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000

    def as_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return asdict(self)


def binds(endpoint: str) -> bool:
    """Whether vLLM binds this endpoint; any other makes the engine connect, so that the agent must bind."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


class EventPublisher:
    """Publishes one rank's batches as ``[topic, sequence u64 big-endian, payload]``, sequence from 0, and keeps the
    last ``buffer_steps`` for replay.

    ``host`` narrows a ``tcp://*:port`` endpoint to one interface.
    """

    def __init__(self, source: EventSource, rank: int = 0, *, host: str = "*") -> None:
        self.source = source
        self.rank = rank
        self.sequence = 0
        self._host = host
        self._skip = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=source.buffer_steps)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._pub: zmq.Socket[bytes] | None = None
        self._replay: zmq.asyncio.Socket | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Bind or connect the sockets. Raises zmq.ZMQError when a port is taken; then nothing is left open."""
        self._context = zmq.Context()
        try:
            self._pub = self._context.socket(zmq.PUB)
            self._pub.set_hwm(self.source.hwm)
            if binds(self.source.endpoint):
                self._pub.bind(self._narrow(self.source.endpoint))
            else:
                self._pub.connect(self.source.endpoint)
            if self.source.replay_endpoint is not None:
                self._replay = zmq.asyncio.Context.shadow(self._context.underlying).socket(zmq.ROUTER)
                self._replay.set_hwm(0)
                self._replay.bind(self._narrow(self.source.replay_endpoint))
                self._task = asyncio.get_running_loop().create_task(self._serve_replay(self._replay))
        except zmq.ZMQError:
            self.close()
            raise

    def publish(self, ts: float, events: list[KvEvent]) -> None:
        """Send one batch. ``ts`` is wall time in seconds. Never waits."""
        payload = encode_batch(ts, events, self.rank)
        sequence = self.sequence
        self.sequence += 1
        self._buffer.append((sequence, payload))
        if self._skip:
            self._skip -= 1
            return
        if self._pub is not None:
            self._pub.send_multipart((self.source.topic.encode(), sequence.to_bytes(8, "big"), payload))

    def skip(self, batches: int) -> None:
        """Do not send the next batches, as if the network had lost them. Replay still has them. For tests."""
        self._skip += batches

    async def stop(self) -> None:
        """Close the sockets; what subscribers have not read by then is lost."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self.close()

    async def _serve_replay(self, router: zmq.asyncio.Socket) -> None:
        while True:
            frames = await router.recv_multipart()
            # A DEALER sends [identity, empty, first sequence]; vLLM drops anything else.
            if len(frames) != 3:
                continue
            client, _, first = frames
            start = int.from_bytes(first, "big")
            topic = self.source.topic.encode()
            for sequence, payload in list(self._buffer):
                if sequence >= start:
                    await router.send_multipart((client, b"", topic, sequence.to_bytes(8, "big"), payload))
            await router.send_multipart((client, b"", b"", END_OF_REPLAY, b""))

    def _narrow(self, endpoint: str) -> str:
        return endpoint.replace("*", self._host, 1) if endpoint.startswith("tcp://*:") else endpoint

    def close(self) -> None:
        """Close the sockets without waiting for the replay task: for an engine that did not come up."""
        for socket in (self._pub, self._replay):
            if socket is not None:
                socket.close(linger=0)
        self._pub = self._replay = None
        if self._context is not None:
            self._context.term()
            self._context = None
