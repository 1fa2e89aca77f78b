"""What a simulated engine is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.engine_sim.hashing import HashForm
from services.engine_sim.timing import Timing


@dataclass(frozen=True, slots=True)
class SimConfig:
    """Options of one engine. Ports that are 0 are chosen when it starts.

    Rank r publishes on ``zmq_port + r`` and replays on ``zmq_port + data_parallel_size + r``; ``events_endpoint`` and
    ``replay_endpoint`` name rank 0's instead (vLLM's rule: an events endpoint with ``*`` binds, any other connects).
    ``num_blocks`` is per rank and counts the null block. ``output_tokens`` is what the model says when a request sets
    no limit. ``encoder_cache_tokens`` is per rank; None: ``max_num_batched_tokens``, as vLLM sizes it.
    ``media_io_kwargs`` are those of the server, by kind of media. ``version`` is 0.24 at least: events are maps.
    """

    model: Path
    served_name: str | None = None
    block_size: int = 16
    num_blocks: int = 4096
    host: str = "127.0.0.1"
    http_port: int = 0
    zmq_port: int = 0
    events_endpoint: str | None = None
    replay_endpoint: str | None = None
    topic: str = ""
    data_parallel_size: int = 1
    speedup: float = 1.0
    seed: int = 0
    timing: Timing = field(default_factory=Timing)
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    encoder_cache_tokens: int | None = None
    max_model_len: int | None = None
    output_tokens: int = 32
    hash_form: HashForm = "int"
    loras: tuple[str, ...] = ()
    limit_mm_per_prompt: Mapping[str, int] = field(default_factory=lambda: {"image": 999, "video": 999})
    allowed_local_media_path: Path | None = None
    trust_request_mm_kwargs: bool = False
    media_io_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    version: str = "0.32.0"
    scale_out: bool = True
    enable_prompt_tokens_details: bool = True
    fetch_seconds: float = 5.0
    max_body_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        for name in ("block_size", "data_parallel_size", "output_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1")

    @property
    def says_sessions(self) -> bool:
        """Whether KV events say the session id of the request that filled the blocks."""
        major, minor = (int(part) for part in self.version.split(".")[:2])
        return (major, minor) >= (0, 30)

    @property
    def name(self) -> str:
        """The name the model is served under."""
        return self.served_name or self.model.name
