"""Brokers we start: on free ports, stopped in order, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.runtime.broker_process import BrokerFailed, BrokerProcess, free_ports
from services.runtime.embedded import EmbeddedBroker, KafkaHomeBroker
from tests.waiting import PATIENCE_SECONDS, eventually

PARENT = """
import asyncio, sys
from services.runtime.embedded import EmbeddedBroker
sys.platform = sys.argv[1]
async def main():
    async with EmbeddedBroker() as broker:
        print(broker.pid, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


async def listens(bootstrap: str) -> bool:
    host, _, port = bootstrap.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True


async def test_two_brokers_run_side_by_side_and_stop() -> None:
    async with EmbeddedBroker() as one, EmbeddedBroker() as two:
        assert one.bootstrap != two.bootstrap
        assert await listens(one.bootstrap)
        assert await listens(two.bootstrap)
        pids, places = (one.pid, two.pid), (one.bootstrap, two.bootstrap)
    assert not any(alive(pid) for pid in pids if pid is not None)
    assert not any([await listens(place) for place in places])
    assert one.pid is None


async def test_stopping_twice_or_before_the_start_does_nothing() -> None:
    broker = EmbeddedBroker()
    await broker.stop()
    broker = EmbeddedBroker()
    await broker.start()
    await broker.stop()
    await broker.stop()


@pytest.mark.parametrize(
    ("end", "platform"),
    [
        (signal.SIGKILL, sys.platform),
        (signal.SIGINT, sys.platform),
        (signal.SIGTERM, sys.platform),
        (signal.SIGKILL, "without a kernel that sees to it"),
    ],
)
async def test_the_broker_dies_with_its_parent(end: signal.Signals, platform: str) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, platform, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert parent.stdout is not None
    try:
        pid = int(await parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(end)
        await asyncio.wait_for(parent.wait(), PATIENCE_SECONDS)
        await eventually(lambda: not alive(pid))
    finally:
        if parent.returncode is None:
            parent.kill()


async def test_a_port_that_is_taken_is_an_error() -> None:
    async with EmbeddedBroker() as one:
        port = int(one.bootstrap.rpartition(":")[2])
        other = EmbeddedBroker(port)
        with pytest.raises(BrokerFailed, match=f"port {port} can't be used"):
            await other.start()
        await other.stop()


async def test_a_child_that_ends_while_starting_is_an_error_with_the_end_of_its_log() -> None:
    child = BrokerProcess("the child")
    child.spawn([sys.executable, "-c", "print('no luck today')"])
    with pytest.raises(BrokerFailed, match=r"the child ended while starting\. Its log ends: no luck today"):
        await child.wait_listening(free_ports(1)[0], PATIENCE_SECONDS)
    await child.stop(signal.SIGTERM, 1)


async def test_a_program_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match="could not be started"):
        BrokerProcess("nothing", tmp_path / "log").spawn([str(tmp_path / "nothing")])
    with pytest.raises(BrokerFailed, match=r"holds no libs/\*\.jar|needs Java"):
        await KafkaHomeBroker(tmp_path).start()


def test_free_ports_differ() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not os.environ.get("KAFKA_HOME"), reason="KAFKA_HOME is not set")
async def test_kafka_keeps_its_data_over_a_kill(tmp_path: Path) -> None:
    from services.runtime.admin import create_topics, list_topics
    from services.runtime.settings import Settings

    broker = KafkaHomeBroker(Path(os.environ["KAFKA_HOME"]), tmp_path / "kafka")
    settings = Settings(kafka_bootstrap=await broker.start(), kafka_partitions=1)
    try:
        made = await create_topics(settings)
        broker.kill()
        assert await broker.start() == settings.kafka_bootstrap
        assert {state.name for state in await list_topics(settings)} == set(made)
    finally:
        await broker.stop()
    assert (tmp_path / "kafka" / "data").is_dir()
