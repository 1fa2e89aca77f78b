"""``kvroute.work.<worker>.v1``: a decided request on its way to the agent. And the responses that come back."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from schemas.media import MediaKind
from schemas.request import Claim
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


class SampledFrames(Part):
    """The frames of a video that were hashed, packed, and where they stand in it."""

    claim: Claim
    indices: list[Int64]
    fps: float = Field(description="of the source")
    total_frames: Int64
    duration: float = Field(description="seconds")


class WorkMedia(Part):
    """A medium in the body: where it stands and which identity, if any, the engine is told."""

    kind: MediaKind
    message: Int64
    part: Int64
    identity: Hex64 | None = Field(default=None, description="set only when it may be forwarded")
    claim: Claim | None = Field(default=None, description="bytes that replace the URL in the body")
    frames: SampledFrames | None = Field(
        default=None, description="for engines that take frames, instead of the video; set only with an identity"
    )
    tokens: Int64 | None = Field(default=None, description="length of its placeholder range; missing: not known")
    end: Int64 | None = Field(default=None, description="prompt token after its range; missing: not known")


class Work(Message):
    """One attempt of one request for one epoch of one agent."""

    SCHEMA: ClassVar[str] = "work.v1"

    request_id: Identifier
    tenant: TenantName = ""
    attempt: Int64 = Field(ge=1)
    worker_id: WorkerId
    dp_rank: Int64 = 0
    epoch: Int64
    model: str
    lora: str | None = None
    cache_salt: str | None = None
    session_id: Identifier | None = None
    priority: Int64 = 0
    stream: bool = False
    body: str | None = Field(default=None, description="JSON text of the OpenAI body")
    body_claim: Claim | None = None
    media: list[WorkMedia] = Field(default_factory=list)
    addresses: U64List = Field(
        default_factory=list,
        description="of blocks, at least up to the last one with a medium, for agents that know media by their prompt",
    )
    reply_to: ResponsesTopic | None = None
    deadline_ms: Int64
    created_at_ms: Int64
    decided_at_ms: Int64

    @property
    def key(self) -> str:
        """Kafka key: tenant and request id."""
        return request_key(self.tenant, self.request_id)


class ResponseError(Part):
    """An OpenAI error with its HTTP status."""

    status: Int64
    type: str
    message: str
    code: str | None = None


LOST_INDEX = 2**31 - 1
"""Index of the final piece the router sends for a worker lost while it answered: pieces before it are missing."""


class Response(Message):
    r"""A piece of the answer. Duplicates share (request, attempt, index); exactly one final piece an attempt.

    A worker that is lost while it answers leaves its pieces without an end: the router then sends a final one with an
    error and index 2147483647, whatever index was last.

    Plain answers are one record whose ``chunk`` is the OpenAI JSON body. Streamed answers carry server-sent
    event text: one or more whole ``data: {...}\n\n`` events a record.
    """

    SCHEMA: ClassVar[str] = "response.v1"

    request_id: Identifier
    tenant: TenantName = ""
    attempt: Int64 = Field(ge=0, description="0: refused before any decision")
    worker_id: WorkerId | None = None
    dp_rank: Int64 = 0
    epoch: Int64 | None = None
    index: Int64 = Field(ge=0)
    chunk: str = ""
    final: bool = False
    error: ResponseError | None = None
    route: dict[str, object] | None = Field(default=None, description="route_only: the decision, without addresses")

    @property
    def key(self) -> str:
        """Kafka key: tenant and request id."""
        return request_key(self.tenant, self.request_id)
