"""TensorRT-LLM's HTTP server. Written from its documentation; not run on the real engine."""

from __future__ import annotations

from typing import Any

import orjson

from schemas.worker import Load
from services.worker.engine import Engine, EngineError, EventSource
from services.worker.engine_metrics import EngineMetrics


class TrtllmEngine(Engine):
    """What an agent asks a stock TensorRT-LLM: metrics are a list of iterations, events are drained by asking."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._metrics = EngineMetrics()

    async def event_sources(self) -> list[EventSource]:
        """None: the events are polled. Raises nothing."""
        return []

    async def metrics(self) -> EngineMetrics:
        """The newest iteration; the last known one while nothing ran. Raises EngineError."""
        try:
            iterations = orjson.loads(await self._read("GET", "/metrics") or b"[]")
        except orjson.JSONDecodeError as error:
            raise EngineError(200, f"{self.url}/metrics answered no JSON: {error}") from error
        if isinstance(iterations, list) and iterations and isinstance(iterations[-1], dict):
            self._metrics = read_iteration(iterations[-1])
        return self._metrics

    async def drain_events(self) -> list[Any]:
        """What happened in the cache since the last call. Raises EngineError."""
        try:
            events = orjson.loads(await self._read("POST", "/kv_cache_events") or b"[]")
        except orjson.JSONDecodeError as error:
            raise EngineError(200, f"{self.url}/kv_cache_events answered no JSON: {error}") from error
        if not isinstance(events, list):
            raise EngineError(200, f"/kv_cache_events answered {type(events).__name__}, expected a list")
        return events


def read_iteration(iteration: dict[str, Any]) -> EngineMetrics:
    """Read one iteration's statistics."""
    cache = iteration.get("kvCacheStats")
    cache = cache if isinstance(cache, dict) else {}
    most, used = _count(cache.get("maxNumBlocks")), _count(cache.get("usedNumBlocks"))
    load = Load(
        running=_count(iteration.get("numActiveRequests")) or 0,
        waiting=_count(iteration.get("numQueuedRequests")) or 0,
        kv_usage=min(1.0, (used or 0) / most) if most else 0.0,
    )
    return EngineMetrics({0: load}, block_size=_count(cache.get("tokensPerBlock")), num_blocks=most)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
