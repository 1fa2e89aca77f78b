"""What commands reach for, in memory: a broker with topics, a gateway with answers. And a way to run a command line."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.decision import Position
from schemas.types import Message
from services.cli.gateway_client import Answer, GatewayRefused
from services.cli.main import run
from services.cli.session import Wiring
from services.runtime.admin import TopicState
from services.runtime.bus import Record
from services.runtime.errors import Transient
from services.runtime.topics import TOPICS
from tests.fakes.audit_records import NOON_MS
from tests.fakes.bus import FakeSender
from tests.fakes.clock import FakeClock


class FakeBroker:
    """Topics as lists of records. ``away``: no broker answers."""

    def __init__(self) -> None:
        self.sender = FakeSender(FakeClock(NOON_MS))
        self.topics: dict[str, list[Record]] = {}
        self.states = [TopicState(topic.name, topic.partitions, topic.partitions) for topic in TOPICS]
        self.away = False

    async def __aenter__(self) -> FakeBroker:
        if self.away:
            raise Transient("no broker answers at 127.0.0.1:9092: refused")
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def put(self, record: Record) -> None:
        """Have a record in its topic."""
        self.topics.setdefault(record.topic, []).append(record)

    def publish(self, topic: str, message: Message | None, key: str) -> None:
        """Have a message in a topic, at its next offset."""
        at = len(self.topics.get(topic, []))
        self.put(Record(topic, 0, at, NOON_MS, key.encode(), message.to_bytes() if message else None))

    async def read_all(self, topic: str) -> AsyncIterator[Record]:
        for record in self.topics.get(topic, []):
            yield record

    async def read_at(self, position: Position) -> Record | None:
        for record in self.topics.get(position.topic, []):
            if (record.partition, record.offset) == (position.partition, position.offset):
                return record
        return None

    async def create_topics(self) -> list[str]:
        return [topic.name for topic in TOPICS[:2]]

    async def list_topics(self) -> list[TopicState]:
        return self.states


class FakeGateway:
    """Answers with its pieces and keeps what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.api_key: str | None = None
        self.model_names = ["qwen3-vl"]
        self.pieces = ["A red", " lamp."]
        self.usage: dict[str, Any] = {"prompt_tokens": 130, "prompt_tokens_details": {"cached_tokens": 48}}
        self.route: dict[str, Any] = {}
        self.refusal: GatewayRefused | None = None
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []

    async def __aenter__(self) -> FakeGateway:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def models(self) -> list[str]:
        return self.model_names

    async def chat(self, body: dict[str, Any], headers: Mapping[str, str]) -> Answer:
        self.asked.append(("/v1/chat/completions", body, dict(headers)))
        if self.refusal is not None:
            raise self.refusal
        own = {"x-request-id": headers["X-Request-Id"], "x-kvroute-worker": "w1", "x-kvroute-attempt": "1"}
        usage: dict[str, Any] = {}
        return Answer(own, self._pieces(usage), usage)

    async def post(self, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        self.asked.append((path, body, dict(headers)))
        return self.route

    async def _pieces(self, usage: dict[str, Any]) -> AsyncIterator[str]:
        for piece in self.pieces:
            yield piece
        usage |= self.usage


@dataclass
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


@dataclass
class CommandLine:
    """Runs `kvroute` in this process, its output caught, its broker and gateway fakes."""

    broker: FakeBroker = field(default_factory=FakeBroker)
    gateway: FakeGateway = field(default_factory=FakeGateway)
    now_ms: int = NOON_MS
    stdin: str = ""

    def __call__(self, *arguments: str) -> Ran:
        """Run one command line."""
        with caught() as (out, err):
            code = run(arguments, Wiring(lambda _: self.broker, self._gateway, lambda: self.now_ms))
        return Ran(code, out.getvalue(), err.getvalue())

    def _gateway(self, url: str, api_key: str | None) -> FakeGateway:
        self.gateway.url, self.gateway.api_key = url, api_key
        return self.gateway


@contextlib.contextmanager
def caught() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    out, err = io.StringIO(), io.StringIO()
    saved = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        yield out, err
    finally:
        sys.stdout, sys.stderr = saved


def shape(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """The fields of JSON rows."""
    return set().union(*(row.keys() for row in rows))
