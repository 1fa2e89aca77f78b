"""Brokers for the integration and end-to-end tests.

``broker`` is Tansu, fresh for every module, and, when KAFKA_HOME is set, Apache Kafka too, one for the whole run.
``settings`` belongs to one test: its topics carry a prefix of their own and exist already.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from services.runtime.admin import create_topics
from services.runtime.embedded import EmbeddedBroker, KafkaHomeBroker
from services.runtime.settings import Settings

T = TypeVar("T")

BROKERS = ("tansu", "kafka") if os.environ.get("KAFKA_HOME") else ("tansu",)
_numbers = itertools.count(1)

# A run started in the background has Ctrl-C ignored, and so would have the processes that tests send it to.
signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class RunningBroker:
    """A broker tests can connect to."""

    name: Literal["tansu", "kafka"]
    bootstrap: str
    profile: Literal["kafka", "embedded"]
    pid: int | None

    def settings(self, data_dir: Path, **overrides: Any) -> Settings:
        """Settings for this broker with a topic prefix nobody else has; 3 partitions instead of 12."""
        values: dict[str, Any] = {
            "kafka_bootstrap": self.bootstrap,
            "kafka_profile": self.profile,
            "topic_prefix": f"t{os.getpid()}-{next(_numbers)}.",
            "kafka_partitions": 3,
            "data_dir": data_dir,
            "drain_seconds": 5.0,
        }
        return Settings(**(values | overrides))


def run_apart(job: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own: brokers outlive the loops of the tests."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(job)
    finally:
        loop.close()


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[RunningBroker]:
    """Apache Kafka from KAFKA_HOME, one for the run. Skips without KAFKA_HOME."""
    home = os.environ.get("KAFKA_HOME")
    if not home:
        pytest.skip("KAFKA_HOME is not set")
    broker = KafkaHomeBroker(Path(home))
    run_apart(broker.start())
    try:
        yield RunningBroker("kafka", broker.bootstrap, broker.profile, broker.pid)
    finally:
        run_apart(broker.stop())


@pytest.fixture(scope="module")
def tansu_broker() -> Iterator[RunningBroker]:
    """The embedded broker, fresh for the module."""
    broker = EmbeddedBroker()
    run_apart(broker.start())
    try:
        yield RunningBroker("tansu", broker.bootstrap, broker.profile, broker.pid)
    finally:
        run_apart(broker.stop())


@pytest.fixture(scope="module", params=BROKERS)
def broker(request: pytest.FixtureRequest) -> RunningBroker:
    """Each broker in turn."""
    found: RunningBroker = request.getfixturevalue(f"{request.param}_broker")
    return found


@pytest.fixture
async def settings(broker: RunningBroker, tmp_path: Path) -> Settings:
    """Settings of this test alone, with all topics made."""
    settings = broker.settings(tmp_path)
    await create_topics(settings)
    return settings
