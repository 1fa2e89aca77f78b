"""Apache Kafka from any folder with ``libs/*.jar``: one KRaft node on free ports, for trying and testing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

from services.runtime.broker_process import BrokerFailed, BrokerProcess, check_free, free_ports
from services.runtime.topics import DEAD_LETTER_LIMIT_BYTES

_CLUSTER_ID = "kvroute000000000000000"
_PREFIX = "kvroute-kafka-"
_START_SECONDS = 120.0
_STOP_SECONDS = 20.0
_TRIES = 3

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
message.max.bytes={message_bytes}
replica.fetch.max.bytes={message_bytes}
"""

_LOGGING = """\
rootLogger.level=warn
rootLogger.appenderRef.out.ref=OUT
appender.out.type=Console
appender.out.name=OUT
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1} %m%n
"""


class KafkaHomeBroker:
    """Kafka from ``home``; ``data_dir`` keeps its data over restarts, without it everything goes with ``stop``."""

    profile: Literal["kafka", "embedded"] = "kafka"

    def __init__(self, home: Path, data_dir: Path | None = None, port: int | None = None) -> None:
        self._home = home
        self._port = port
        self._ports: tuple[int, int] | None = None
        self._temporary = data_dir is None
        self._folder = data_dir
        self._process: BrokerProcess | None = None
        self.bootstrap = ""
        """``host:port`` while it runs."""

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> str:
        """Start (formatting a new data folder first) and return ``host:port``. Raises BrokerFailed."""
        java = _java()
        if not any((self._home / "libs").glob("*.jar")):
            raise BrokerFailed(f"{self._home} holds no libs/*.jar: KAFKA_HOME must name an unpacked Kafka")
        if self._folder is None:
            _sweep()
            self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        folder = self._folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        self._process = BrokerProcess("Kafka", folder / "kafka.log")
        if self._port is not None:
            check_free(self._port)
        for left in reversed(range(_TRIES)):
            try:
                self.bootstrap = await self._start_once(java, folder)
            except BrokerFailed:
                taken = "already in use" in self._process.tail(100)
                await self._process.stop(signal.SIGKILL, 5.0)
                if left == 0 or self._port is not None or self._ports is not None or not taken:
                    raise
            else:
                return self.bootstrap
        raise AssertionError("unreachable")

    async def stop(self) -> None:
        """Stop in order; a temporary data folder is removed. Does nothing when it is not running."""
        if self._process is not None:
            await self._process.stop(signal.SIGTERM, _STOP_SECONDS)
        self.bootstrap = ""
        if self._temporary and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def kill(self) -> None:
        """SIGKILL; the data folder stays, so that ``start`` can follow."""
        if self._process is not None:
            self._process.kill()
        self.bootstrap = ""

    async def __aenter__(self) -> KafkaHomeBroker:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()

    async def _start_once(self, java: str, folder: Path) -> str:
        assert self._process is not None
        # After a kill the same ports again: clients that wait for it find it.
        free, controller = self._ports or free_ports(2)
        port = self._port or free
        properties = folder / "server.properties"
        properties.write_text(
            _PROPERTIES.format(port=port, controller=controller, folder=folder, message_bytes=DEAD_LETTER_LIMIT_BYTES)
        )
        logging = folder / "log4j2.properties"
        logging.write_text(_LOGGING)
        classpath = f"{self._home.resolve() / 'libs'}/*"
        if not (folder / "data" / "meta.properties").is_file():
            await _format(java, classpath, properties)
        options = ["-Xms64m", "-Xmx512m", "-XX:+UseSerialGC"]
        self._process.spawn(
            [java, *options, f"-Dlog4j2.configurationFile={logging}", "-cp", classpath, "kafka.Kafka", str(properties)]
        )
        await self._process.wait_listening(port, _START_SECONDS)
        self._ports = (port, controller)
        return f"127.0.0.1:{port}"


async def _format(java: str, classpath: str, properties: Path) -> None:
    command = [java, "-Xmx128m", "-cp", classpath, "kafka.tools.StorageTool", "format",
               "-t", _CLUSTER_ID, "-c", str(properties)]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        last = " | ".join(output.decode(errors="replace").splitlines()[-5:])
        raise BrokerFailed(f"Kafka could not format {properties.parent / 'data'}: {last}")


def _sweep() -> None:
    """Remove temporary data of processes that were killed before they could."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not _exists(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise BrokerFailed("Kafka needs Java 17 or newer: install it, or set JAVA_HOME")
    return java
