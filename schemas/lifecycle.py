"""``kvroute.lifecycle.v1``: what happened to a request, as facts any stage or agent states."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from schemas.types import Identifier, Int64, Message, Part, TenantName, WorkerId, request_key


class LifecycleEvent(StrEnum):
    """Facts in the life of a request or attempt."""

    ACCEPTED = "accepted"
    FIRST_TOKEN = "first_token"
    FINISHED = "finished"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Usage(Part):
    """Tokens as the engine reported them."""

    prompt_tokens: Int64 | None = None
    completion_tokens: Int64 | None = None
    cached_tokens: Int64 | None = None


class Lifecycle(Message):
    """One fact. ``attempt`` 0 speaks of the request before any decision."""

    SCHEMA: ClassVar[str] = "lifecycle.v1"

    request_id: Identifier
    tenant: TenantName = ""
    attempt: Int64 = Field(default=0, ge=0)
    event: LifecycleEvent
    stage: str = Field(description="media, layout, router, agent, gateway")
    at_ms: Int64
    created_at_ms: Int64
    model: str = ""
    worker_id: WorkerId | None = None
    dp_rank: Int64 = 0
    epoch: Int64 | None = None
    usage: Usage | None = None
    status: Int64 | None = Field(default=None, description="HTTP status of a refusal or failure")
    code: str | None = None
    detail: str | None = Field(default=None, max_length=500, description="for people; no URL query, no payload")
    before_output: bool = Field(default=True, description="nothing had been answered yet: may be routed again")
    retryable: bool = Field(default=False, description="another worker may do better")
    stream: bool | None = None
    route_only: bool | None = None
    session_id: Identifier | None = None
    deadline_ms: Int64 | None = None
    timings_ms: dict[str, float] = Field(default_factory=dict)

    @property
    def key(self) -> str:
        """Kafka key: tenant and request id."""
        return request_key(self.tenant, self.request_id)
