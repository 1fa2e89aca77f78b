"""The floor under the pipeline: bare aiokafka processes that hand records from topic to topic, nothing else.

Five hops, as a request takes: requests, media-resolved, expanded, work, responses. One process a hop, as the stages
run; the same client settings and the same number of partitions.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.processes import Child
from services.runtime.connection import admin_options, consumer_options, producer_options
from services.runtime.settings import Settings

HOPS = 5
PARTITIONS = 12


@dataclass(frozen=True, slots=True)
class Floor:
    """What bare hops reach: seconds of each chain, and chains a second over the whole run."""

    seconds: list[float]
    per_second: float


async def floor(settings: Settings, *, record_bytes: int, concurrency: int, chains: int, hops: int = HOPS) -> Floor:
    """Send records of ``record_bytes`` through ``hops`` topics, ``concurrency`` at once, and time each chain."""
    tag = f"{record_bytes}-{concurrency}-{time.monotonic_ns() % 10**9}"
    topics = [f"bench.hop.{tag}.{number}" for number in range(hops)]
    await _create(settings, topics)
    command = [sys.executable, "-m", "benchmarks.hops", settings.kafka_bootstrap, settings.kafka_profile]
    children = [
        await Child.start(f"hop {source}", [*command, source, target]) for source, target in pairwise(topics)
    ]
    try:
        for child in children:
            await child.line_with("ready")
        return await _drive(settings, topics[0], topics[-1], record_bytes, concurrency, chains)
    finally:
        for child in children:
            await child.stop()


async def _drive(
    settings: Settings, first: str, last: str, record_bytes: int, concurrency: int, chains: int
) -> Floor:
    payload = bytes(range(32, 127)) * (record_bytes // 95 + 1)
    waiting: dict[bytes, asyncio.Future[None]] = {}
    producer = AIOKafkaProducer(**producer_options(settings))
    consumer = await _consumer(settings, last)
    await producer.start()

    async def receive() -> None:
        while True:
            for records in (await consumer.getmany(timeout_ms=3_600_000)).values():
                for record in records:
                    if (future := waiting.pop(record.key or b"", None)) is not None:
                        future.set_result(None)

    receiver = asyncio.create_task(receive())
    seconds: list[float] = []
    warm_up = chains // 4 + 4 * concurrency  # new topics: every first record of a partition waits for its metadata
    numbers = iter(range(chains + warm_up))

    async def client() -> None:
        for number in numbers:
            key = b"%d" % number
            waiting[key] = asyncio.get_running_loop().create_future()
            future = waiting[key]
            start = time.perf_counter()
            await producer.send(first, payload[:record_bytes], key=key)
            await asyncio.wait_for(future, 60)
            seconds.append(time.perf_counter() - start)

    try:
        await asyncio.gather(*(client() for _ in range(concurrency)))
        measured = seconds[warm_up:]
        return Floor(measured, concurrency / statistics.mean(measured))
    finally:
        receiver.cancel()
        await consumer.stop()
        await producer.stop()


async def forward(settings: Settings, source: str, target: str) -> None:
    """Hand every record of one topic to the next, acks pipelined, until killed."""
    producer = AIOKafkaProducer(**producer_options(settings))
    consumer = await _consumer(settings, source)
    await producer.start()
    print("ready", flush=True)
    while True:
        for records in (await consumer.getmany(timeout_ms=3_600_000)).values():
            for record in records:
                await producer.send(target, record.value, key=record.key)


async def _consumer(settings: Settings, topic: str) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(**consumer_options(settings))
    await consumer.start()
    consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
    await consumer.seek_to_beginning()
    return consumer


async def _create(settings: Settings, topics: Sequence[str]) -> None:
    admin = AIOKafkaAdminClient(**admin_options(settings))
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics])
    finally:
        await admin.close()


if __name__ == "__main__":
    bootstrap, profile, *topics_of_the_hop = sys.argv[1:]
    client = Settings.model_validate({"kafka_bootstrap": bootstrap, "kafka_profile": profile})
    asyncio.run(forward(client, *topics_of_the_hop))
