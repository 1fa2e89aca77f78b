"""SGLang's HTTP server. Written from its documentation; not run on the real engine."""

from __future__ import annotations

import re
from typing import Any

import orjson

from schemas.worker import Load
from services.worker.engine import Engine, EngineError, EventSource
from services.worker.engine_metrics import EngineMetrics

_LINE = re.compile(
    r"^sglang:(num_running_reqs|num_queue_reqs|token_usage)(?:\{([^}]*)\})?\s+([0-9.eE+-]+)", re.MULTILINE
)
_RANK = re.compile(r'dp_rank="(\d+)"')
_INFO = ("/server_info", "/get_server_info")
"""The newer path first."""


class SglangEngine(Engine):
    """What an agent asks a stock SGLang."""

    async def server_info(self) -> dict[str, Any]:
        """Its arguments and state. Raises EngineError."""
        try:
            return await self._get(_INFO[0])
        except EngineError as error:
            if error.status not in (404, 405):
                raise
        return await self._get(_INFO[1])

    async def version(self) -> str:
        """The engine's version, empty if it does not say. Raises EngineError."""
        return str((await self.server_info()).get("version") or "")

    async def page_size(self) -> int:
        """Tokens of a page of its cache. Raises EngineError."""
        size = (await self.server_info()).get("page_size")
        return size if isinstance(size, int) and size > 0 else 1

    async def event_sources(self) -> list[EventSource]:
        """As ``--kv-events-config`` says: rank r uses port + r. Raises EngineError."""
        info = await self.server_info()
        config = info.get("kv_events_config")
        try:
            config = orjson.loads(config) if isinstance(config, str) else config
        except orjson.JSONDecodeError:
            config = None
        if not isinstance(config, dict) or config.get("publisher") != "zmq":
            return []
        ranks = info.get("dp_size") if isinstance(info.get("dp_size"), int) else 1
        endpoint = str(config.get("endpoint") or "tcp://*:5557")
        replay, topic = config.get("replay_endpoint") or None, str(config.get("topic") or "")
        return [EventSource(rank, endpoint, replay, topic) for rank in range(ranks or 1)]

    async def metrics(self) -> EngineMetrics:
        """Load by rank; without --enable-metrics nothing is known. Raises EngineError."""
        try:
            text = (await self._read("GET", "/metrics")).decode("utf-8", "replace")
        except EngineError as error:
            if error.status in (404, 405):
                return EngineMetrics()
            raise
        return read_metrics(text)


def read_metrics(text: str) -> EngineMetrics:
    """Read the Prometheus text of an SGLang server."""
    values: dict[int, dict[str, float]] = {}
    for name, labels, raw in _LINE.findall(text):
        found = _RANK.search(labels)
        values.setdefault(int(found[1]) if found else 0, {})[name] = float(raw)
    loads = {
        rank: Load(
            running=int(reading.get("num_running_reqs", 0)),
            waiting=int(reading.get("num_queue_reqs", 0)),
            kv_usage=min(1.0, max(0.0, reading.get("token_usage", 0.0))),
        )
        for rank, reading in values.items()
    }
    return EngineMetrics(loads)
