"""``kvroute.decisions.v1``: which worker was chosen, from which candidates, and every number the choice used."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from schemas.media import IdentitySource, MediaKind
from schemas.types import (
    Hex64,
    Identifier,
    Int64,
    Message,
    Part,
    ResponsesTopic,
    TenantName,
    U64List,
    WorkerId,
    request_key,
)
from services.kv.reason import Reason


class Outcome(StrEnum):
    """What became of the choice."""

    ROUTED = "routed"
    NO_WORKER = "no_worker"
    ALL_BUSY = "all_busy"


class Mode(StrEnum):
    """How much of the prompt could be matched against caches."""

    EXACT = "exact"
    TEXT_PREFIX = "text_prefix"
    LOAD_ONLY = "load_only"


class Position(Part):
    """A place in Kafka."""

    topic: str
    partition: Int64
    offset: Int64


class Candidate(Part):
    """One slot that could have been chosen, with every term of its cost (blocks, lower is better)."""

    worker_id: WorkerId
    dp_rank: Int64 = 0
    epoch: Int64
    overlap_device: Int64 = 0
    overlap_host: Int64 = 0
    overlap_disk: Int64 = 0
    overlap_predicted: Int64 = Field(default=0, description="blocks, with predicted entries counted")
    active_prefill_tokens: Int64 = 0
    active_decode_blocks: Int64 = 0
    active_requests: Int64 = 0
    new_decode_blocks: Int64 = Field(default=0, description="this prompt's blocks not active on the slot yet")
    vision_tokens: Int64 = Field(default=0, description="media tokens whose KV is not resident")
    encoder_tokens: Int64 = Field(
        default=0, description="of vision_tokens: those whose encoder output the slot still holds"
    )
    prefill_cost: float = 0.0
    decode_cost: float = 0.0
    request_cost: float = 0.0
    cost: float = 0.0
    uncertain: bool = Field(default=False, description="the slot's index had a gap when it was read")
    reported: dict[str, float] = Field(default_factory=dict, description="load as the last heartbeat reported it")


class RestOfCandidates(Part):
    """The candidates that are not listed one by one."""

    count: Int64 = 0
    min_cost: float | None = None
    max_cost: float | None = None


class DecisionMedia(Part):
    """A medium as the audit keeps it: no URL query, no payload."""

    kind: MediaKind
    identity: Hex64 | None = None
    source: IdentitySource = IdentitySource.NONE
    forwarded: bool = False
    width: Int64 | None = None
    height: Int64 | None = None
    size_bytes: Int64 | None = None
    frames: Int64 | None = None
    tokens: Int64 | None = None
    offset: Int64 | None = None
    host: str | None = None
    path: str | None = None
    url_hash: Hex64 | None = None
    reason: Reason | None = None


class Decision(Message):
    """The first record for (request, attempt) is the decision; later ones for the same pair lost."""

    SCHEMA: ClassVar[str] = "decision.v1"

    request_id: Identifier
    tenant: TenantName = ""
    attempt: Int64 = Field(ge=1)
    outcome: Outcome
    model: str
    lora: str | None = None
    session_id: Identifier | None = None
    priority: Int64 = 0
    route_only: bool = False
    book: bool = False
    reply_to: ResponsesTopic | None = None
    created_at_ms: Int64
    deadline_ms: Int64
    worker_id: WorkerId | None = None
    dp_rank: Int64 = 0
    epoch: Int64 | None = None
    mode: Mode
    reason: Reason | None = None
    detail: str | None = None
    variant: str = ""
    block_size: Int64 = 0
    prompt_tokens: Int64
    exact_tokens: Int64
    total_blocks: Int64 = 0
    overlap_confirmed: Int64 = Field(default=0, description="blocks the worker's events say it holds (best tier chain)")
    overlap_predicted: Int64 = Field(default=0, description="blocks counted with this router's own recent decisions")
    usable_blocks: Int64 = Field(default=0, description="min(overlap_confirmed, (prompt_tokens - 1) // block_size)")
    predicted_tokens: Int64 = Field(default=0, description="usable_blocks * block_size, compared with cached_tokens")
    addresses: U64List = Field(default_factory=list, description="the prompt's addresses at block_size")
    candidates: list[Candidate] = Field(default_factory=list, description="the chosen first, then the best 31 others")
    rest: RestOfCandidates = Field(default_factory=RestOfCandidates)
    ties: Int64 = 1
    margin: float | None = Field(default=None, description="cost of the next best minus the chosen")
    seed: Hex64 = 0
    policy: str
    policy_version: str
    parameters: dict[str, float] = Field(default_factory=dict, description="weights and scales as used")
    now_ms: Int64
    router: str = Field(default="", description="replica that decided")
    excluded: list[str] = Field(default_factory=list, description="slots excluded by earlier attempts, worker/rank")
    projection: list[Position] = Field(default_factory=list, description="kv-events read so far, by partition")
    expanded: Position
    media: list[DecisionMedia] = Field(default_factory=list)
    timings_ms: dict[str, float] = Field(default_factory=dict)

    @property
    def key(self) -> str:
        """Kafka key: tenant and request id."""
        return request_key(self.tenant, self.request_id)
