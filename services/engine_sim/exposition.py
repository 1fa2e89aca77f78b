"""``/metrics`` in Prometheus text form, with vLLM's names and labels. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankState:
    """What one data-parallel rank reports."""

    running: int
    waiting: int
    kv_usage: float
    queried_tokens: int
    hit_tokens: int
    prompt_tokens: int
    generated_tokens: int
    preemptions: int
    block_size: int
    num_gpu_blocks: int


_GAUGES = {
    "vllm:num_requests_running": ("Number of requests in model execution batches.", "running"),
    "vllm:num_requests_waiting": ("Number of requests waiting to be processed.", "waiting"),
    "vllm:kv_cache_usage_perc": ("KV-cache usage. 1 means 100 percent usage.", "kv_usage"),
}
_COUNTERS = {
    "vllm:prefix_cache_queries": ("Prefix cache queries, in terms of number of queried tokens.", "queried_tokens"),
    "vllm:prefix_cache_hits": ("Prefix cache hits, in terms of number of cached tokens.", "hit_tokens"),
    "vllm:prompt_tokens": ("Number of prefill tokens processed.", "prompt_tokens"),
    "vllm:generation_tokens": ("Number of generation tokens processed.", "generated_tokens"),
    "vllm:num_preemptions": ("Cumulative number of preemption from the engine.", "preemptions"),
}


def exposition(model: str, ranks: Iterable[RankState], mm_queries: int, mm_hits: int, started_at: float) -> str:
    """All families, one sample per rank and family. The processor cache is the server's, not a rank's: rank 0."""
    states = list(ranks)
    lines: list[str] = []
    for name, (meaning, field) in _GAUGES.items():
        lines += _family(name, "gauge", meaning)
        lines += [_sample(name, _labels(model, rank), getattr(state, field)) for rank, state in enumerate(states)]
    for name, (meaning, field) in _COUNTERS.items():
        lines += _family(name, "counter", meaning)
        lines += [
            _sample(f"{name}_total", _labels(model, rank), getattr(state, field)) for rank, state in enumerate(states)
        ]
    for name, value in (("vllm:mm_cache_queries", mm_queries), ("vllm:mm_cache_hits", mm_hits)):
        lines += _family(name, "counter", "Multi-modal cache, in terms of number of items.")
        lines.append(_sample(f"{name}_total", _labels(model, 0), value))
    lines += _family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
    for rank, state in enumerate(states):
        config = {
            "block_size": str(state.block_size),
            "enable_prefix_caching": "True",
            "engine": str(rank),
            "num_gpu_blocks": str(state.num_gpu_blocks),
        }
        lines.append(_sample("vllm:cache_config_info", config, 1))
    lines += _family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
    lines.append(f"process_start_time_seconds {started_at}")
    return "\n".join(lines) + "\n"


def _labels(model: str, rank: int) -> dict[str, str]:
    return {"engine": str(rank), "model_name": model}


def _family(name: str, kind: str, meaning: str) -> list[str]:
    # Counters are declared under the name of their samples in the text form.
    declared = f"{name}_total" if kind == "counter" else name
    return [f"# HELP {declared} {meaning}", f"# TYPE {declared} {kind}"]


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inner = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {float(value)}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
