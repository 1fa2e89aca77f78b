"""An engine rank's KV events over ZMQ: live by SUB, the past by replay from a DEALER.

The subscription stands before the past is asked for, so nothing falls between the two; what comes twice is told
apart by its seq.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol

import zmq
import zmq.asyncio

from services.runtime.errors import KvrouteError
from services.worker.endpoints import Source

REPLAY_SECONDS = 10.0
AT_ONCE = 16
RECEIVE_LIMIT = 200_000
"""Batches held for us by ZMQ; beyond it the engine's batches are lost, which the seq shows."""

_END = (-1).to_bytes(8, "big", signed=True)


class ReplayFailed(KvrouteError):
    """The engine's replay endpoint did not answer to the end."""


@dataclass(frozen=True, slots=True)
class RawBatch:
    """One published batch."""

    seq: int
    payload: bytes


class Streams(Protocol):
    """How one rank's batches come."""

    remembers: bool
    """Whether a replay gives again what was given before."""

    def open(self) -> None:
        """Begin to listen."""
        ...

    def close(self) -> None:
        """Let go."""
        ...

    async def receive(self) -> list[RawBatch]:
        """The next batches: what is there already, or the first that comes."""
        ...

    def replay(self, start: int) -> AsyncGenerator[RawBatch, None]:
        """What the engine still holds from a seq on. Raises ReplayFailed."""
        ...


class EventStream:
    """The sockets of one rank."""

    remembers = True

    def __init__(self, source: Source) -> None:
        self.source = source
        # One context a process, never ended: ending one waits for every socket, even inside a garbage collection.
        self._context: Any = zmq.asyncio.Context.instance()
        self._socket: Any = None
        self._at_once: Any = None

    def open(self) -> None:
        """Subscribe. Raises zmq.ZMQError when an endpoint we bind is taken."""
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, RECEIVE_LIMIT)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt_string(zmq.SUBSCRIBE, self.source.topic)
        endpoint = self.source.events
        if endpoint.bind:
            socket.bind(endpoint.address)
        else:
            socket.setsockopt(zmq.RECONNECT_IVL, 50)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
            socket.connect(endpoint.address)
        self._socket = socket
        self._at_once = zmq.Socket.shadow(socket)

    def close(self) -> None:
        """Let go of the sockets."""
        if self._socket is not None:
            self._socket.close(0)
            self._socket = None

    async def receive(self) -> list[RawBatch]:
        """The next live batches: what is there already, or the first that comes. What is no batch is passed over."""
        received: list[list[bytes]] = [await self._socket.recv_multipart()]
        # An await a batch costs as much as following it.
        with contextlib.suppress(zmq.Again):
            while len(received) < AT_ONCE:
                received.append(self._at_once.recv_multipart(zmq.NOBLOCK))
        return [
            RawBatch(int.from_bytes(frames[-2], "big"), frames[-1])
            for frames in received
            if len(frames) >= 2 and len(frames[-2]) == 8
        ]

    async def replay(self, start: int) -> AsyncGenerator[RawBatch, None]:
        """What the engine still holds from a seq on. Raises ReplayFailed."""
        endpoint = self.source.replay
        if endpoint is None:
            raise ReplayFailed("the engine has no replay endpoint (--kv-events-config replay_endpoint)")
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        try:
            socket.connect(endpoint.address)
            await socket.send_multipart([b"", start.to_bytes(8, "big")])
            while True:
                try:
                    async with asyncio.timeout(REPLAY_SECONDS):
                        frames: list[bytes] = await socket.recv_multipart()
                except TimeoutError:
                    raise ReplayFailed(
                        f"{endpoint.address} was silent for {REPLAY_SECONDS:.0f} s while replaying from {start}"
                    ) from None
                # Up to 0.24 an answer is [b"", seq, payload], later [b"", topic, seq, payload].
                if len(frames) < 3 or len(frames[-2]) != 8:
                    raise ReplayFailed(f"{endpoint.address} answered {len(frames)} frames that are no batch")
                if frames[-2] == _END:
                    return
                yield RawBatch(int.from_bytes(frames[-2], "big"), frames[-1])
        finally:
            socket.close(0)
