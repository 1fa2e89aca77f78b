"""What an engine's /metrics says that matters for routing: load per rank, block size, number of blocks. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from schemas.worker import Load

_LINE = re.compile(r"^(vllm:[a-z_]+|process_start_time_seconds)(?:\{([^}]*)\})?\s+([0-9.eE+-]+|NaN)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_CONFIG = "vllm:cache_config_info"
_STARTED = "process_start_time_seconds"


@dataclass(slots=True)
class EngineMetrics:
    """One reading. ``loads`` is by rank; ``block_size`` and ``num_blocks`` are None where the engine does not say."""

    loads: dict[int, Load] = field(default_factory=dict)
    block_size: int | None = None
    num_blocks: int | None = None
    started_at: float | None = None
    """When the engine's process began, by its own clock."""


def read_metrics(text: str) -> EngineMetrics:
    """Read the Prometheus text of a vLLM server. Unknown lines are nobody's business."""
    found = EngineMetrics()
    values: dict[int, dict[str, float]] = {}
    for name, raw_labels, raw in _LINE.findall(text):
        if name not in (_RUNNING, _WAITING, _CONFIG, _STARTED, *_USAGE):
            continue
        if name == _STARTED:
            found.started_at = float(raw)
            continue
        labels = dict(_LABEL.findall(raw_labels))
        if name == _CONFIG:
            found.block_size = _number(labels.get("block_size"))
            found.num_blocks = _number(labels.get("num_gpu_blocks"))
            continue
        rank, value = _number(labels.get("engine")) or 0, float(raw)
        if value == value:
            values.setdefault(rank, {})[name] = value
    for rank, reading in values.items():
        usage = next((reading[name] for name in _USAGE if name in reading), 0.0)
        found.loads[rank] = Load(
            running=int(reading.get(_RUNNING, 0)),
            waiting=int(reading.get(_WAITING, 0)),
            kv_usage=min(1.0, max(0.0, usage)),
        )
    return found


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
