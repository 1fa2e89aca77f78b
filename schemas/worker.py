"""``kvroute.workers.v1`` and ``kvroute.heartbeats.v1``: who serves what, and how it is doing."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from schemas.decision import Position
from schemas.types import Int64, Message, Part, U64List, WorkerId


class WorkerState(StrEnum):
    """A worker's place in its life."""

    LIVE = "live"
    DRAINING = "draining"
    RETIRED = "retired"


class ModalityContract(Part):
    """What probing proved for one of text, image, video."""

    proven: bool = False
    variant: str = ""
    verbatim_identity: bool | None = Field(default=None, description="the uuid sent came back in KV events")
    binding: str = Field(
        default="",
        description="how identities that come back changed are known: session, tokens; empty: none are, or not at all",
    )
    max_pixels: Int64 | None = Field(
        default=None, description="of the largest medium the probes covered; of a video, of all frames the model sees"
    )
    max_items: Int64 | None = Field(default=None, description="media of this kind the engine takes in one prompt")
    frames: bool = Field(default=False, description="videos are handed over as the frames that were hashed")
    sampling: str = Field(default="", description="of videos: the rule by which the engine takes frames")
    detail: str | None = Field(default=None, max_length=1000)


class Contract(Part):
    """A model's layout as this worker's engine applies it, proven by probes."""

    model: str
    text: ModalityContract = Field(default_factory=ModalityContract)
    image: ModalityContract = Field(default_factory=ModalityContract)
    video: ModalityContract = Field(default_factory=ModalityContract)


class Limits(Part):
    """What the engine can take."""

    max_concurrency: Int64 = Field(default=256, ge=1)
    max_model_len: Int64 | None = None
    num_blocks: Int64 | None = Field(default=None, description="device KV blocks per rank")


class Worker(Message):
    """A worker's registration; the newest record per worker counts (compacted)."""

    SCHEMA: ClassVar[str] = "worker.v1"

    worker_id: WorkerId
    epoch: Int64
    state: WorkerState = WorkerState.LIVE
    dp_size: Int64 = Field(default=1, ge=1, le=4096)
    engine: str = Field(default="vllm", description="vllm, sglang or trtllm")
    engine_version: str = ""
    model: str = Field(description="served model name")
    loras: list[str] = Field(default_factory=list)
    block_size: Int64 = Field(gt=0)
    contract: Contract | None = None
    limits: Limits = Field(default_factory=Limits)
    at_ms: Int64
    agent: str = Field(default="", description="host of the agent, for people")
    engine_url: str | None = Field(
        default=None, max_length=500, description="where the engine renders chats, if its layouts are asked from it"
    )


class Load(Part):
    """Load of one rank as the engine reports it."""

    running: Int64 = 0
    waiting: Int64 = 0
    kv_usage: float = Field(default=0.0, ge=0.0, le=1.0)


class Heartbeat(Message):
    """Grants a lease. One record a slot every 2 s."""

    SCHEMA: ClassVar[str] = "heartbeat.v1"

    worker_id: WorkerId
    dp_rank: Int64 = 0
    epoch: Int64
    at_ms: Int64
    healthy: bool = True
    load: Load = Field(default_factory=Load)
    snapshot: Position | None = Field(default=None, description="where the slot's latest KV snapshot starts")
    seq: Int64 | None = Field(default=None, description="last kv-events seq of the slot")
    encoder: U64List = Field(
        default_factory=list,
        max_length=1024,
        description="identities of media whose encoder outputs the slot surely still holds, latest used first",
    )
