"""Topics: made from the table, compared with the table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from services.runtime.connection import ENVELOPE_BYTES, admin_options
from services.runtime.errors import ConfigError, Transient
from services.runtime.logs import get_logger
from services.runtime.names import TopicNames
from services.runtime.settings import Settings
from services.runtime.topics import RECORD_LIMIT_BYTES, TOPICS, Topic

_ALREADY_EXISTS = 36
_SPREAD_PARTITIONS = 12
PATIENCE_SECONDS = 15.0
"""How long a starting stage waits for topics that are being made."""
_log = get_logger("runtime.admin")


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as the broker has it; ``expected`` is None for topics made at run time."""

    name: str
    partitions: int
    expected: int | None

    @property
    def right(self) -> bool:
        """Whether the partitions are those of the table."""
        return self.expected is None or self.partitions == self.expected


class Admin:
    """An admin connection, made when it is first needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names = TopicNames(settings.topic_prefix)
        self._client: AIOKafkaAdminClient | None = None
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> Admin:
        """Connect when needed."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        await self.stop()

    async def create(self, topics: Iterable[tuple[str, Topic]]) -> list[str]:
        """Make topics (name, entry of the table); returns the names that are new. Existing ones are left alone.

        Raises Transient when the broker can't be reached, ConfigError when it refuses.
        """
        wanted = {self._names.outside(name): topic for name, topic in topics}
        new = [
            NewTopic(
                name,
                partitions_of(topic, self._settings),
                self._settings.kafka_replication,
                topic_configs=config_of(topic, self._settings),
            )
            for name, topic in wanted.items()
        ]
        if not new:
            return []
        client = await self._connected()
        try:
            answer = (await client.create_topics(new)).topic_errors
        except KafkaError as error:
            raise Transient(f"topics could not be created: {type(error).__name__} {error}") from error
        made: list[str] = []
        for name, code, message in answer:
            if code == 0:
                made.append(self._names.inside(name))
            elif code != _ALREADY_EXISTS:
                raise ConfigError(
                    f"the broker refused to create {name}: {message or code}. Expected rights to create topics and "
                    f"at least {self._settings.kafka_replication} brokers (KVROUTE_KAFKA_REPLICATION)"
                )
        return made

    async def partitions(self, names: Iterable[str]) -> dict[str, int]:
        """Number of partitions of those of the topics that exist. Raises Transient."""
        wanted = {self._names.outside(name) for name in names}
        # Asked for a topic by name, the embedded broker makes it: with 4 partitions, whatever the table says.
        found = await self._describe(sorted(wanted) if self._settings.kafka_profile == "kafka" else None)
        return {state.name: state.partitions for state in found if self._names.outside(state.name) in wanted}

    async def wait_for(self, names: Iterable[str], seconds: float = PATIENCE_SECONDS) -> dict[str, int]:
        """Partitions by topic once all exist. Raises Transient when some still don't after ``seconds``."""
        wanted = set(names)
        deadline = asyncio.get_running_loop().time() + seconds
        while missing := wanted - (found := await self.partitions(wanted)).keys():
            if asyncio.get_running_loop().time() > deadline:
                raise Transient(f"topics are missing: {', '.join(sorted(missing))}. Run `kvroute topics create`")
            await asyncio.sleep(0.1)
        return found

    async def exists(self, name: str) -> bool:
        """Whether a topic exists. Raises Transient."""
        return name in await self.partitions([name])

    async def states(self) -> list[TopicState]:
        """All topics of this fleet. Raises Transient."""
        return sorted(await self._describe(None), key=lambda state: state.name)

    async def stop(self) -> None:
        """Disconnect."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _describe(self, names: list[str] | None) -> list[TopicState]:
        expected = {topic.name: partitions_of(topic, self._settings) for topic in TOPICS}
        client = await self._connected()
        try:
            answer = await client.describe_topics(names)
        except KafkaError as error:
            raise Transient(f"topics could not be read: {type(error).__name__} {error}") from error
        return [
            TopicState(inside, len(entry["partitions"]), expected.get(inside))
            for entry in answer
            if entry["error_code"] == 0 and self._names.ours(entry["topic"])
            for inside in (self._names.inside(entry["topic"]),)
        ]

    async def _connected(self) -> AIOKafkaAdminClient:
        async with self._connecting:
            if self._client is None:
                client = AIOKafkaAdminClient(**admin_options(self._settings))
                try:
                    await client.start()
                except KafkaError as error:
                    await client.close()
                    raise Transient(f"no broker answers at {self._settings.kafka_bootstrap}: {error}") from error
                self._client = client
            return self._client


def partitions_of(topic: Topic, settings: Settings) -> int:
    """Partitions a topic is made with: the setting replaces the table's 12."""
    spread = topic.partitions == _SPREAD_PARTITIONS and settings.kafka_partitions is not None
    return settings.kafka_partitions or topic.partitions if spread else topic.partitions


def config_of(topic: Topic, settings: Settings) -> dict[str, str]:
    """Configuration a topic is made with. Three replicas or more: two must have a record before it counts."""
    config = dict(topic.config)
    config.setdefault("max.message.bytes", str(RECORD_LIMIT_BYTES + ENVELOPE_BYTES))
    if settings.kafka_replication >= 3:
        config.setdefault("min.insync.replicas", "2")
    return config


async def create_topics(settings: Settings) -> list[str]:
    """Make the topics of the table that are missing; returns the new ones. Waits until all can be seen.

    Raises Transient when the broker can't be reached, ConfigError when it refuses. A topic that exists with other
    partitions than the table says is left alone and reported in the log.
    """
    async with Admin(settings) as admin:
        made = await admin.create((topic.name, topic) for topic in TOPICS)
        await admin.wait_for(topic.name for topic in TOPICS)
        wrong = [state for state in await admin.states() if not state.right]
    for state in wrong:
        _log.warning("topic has other partitions than the table", topic=state.name, found=state.partitions,
                     expected=state.expected)  # fmt: skip
    return made


async def list_topics(settings: Settings) -> list[TopicState]:
    """All topics of this fleet as the broker has them, by name. Raises Transient."""
    async with Admin(settings) as admin:
        return await admin.states()
