"""``kvroute.requests.v1``: an OpenAI chat request as a user or the gateway produces it."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from schemas.types import Identifier, Int64, Message, Part, ResponsesTopic, TenantName, request_key


class Claim(Part):
    """Bytes kept outside Kafka by content: where they are and how long they stay. Written by stages, never by users."""

    uri: str = Field(pattern=r"^blob:[0-9a-f]{32}$", description="blob:<128-bit content hash>")
    size: Int64 = Field(ge=0, description="bytes")
    content_type: str = ""
    expires_ms: Int64 = Field(default=0, ge=0, description="wall milliseconds after which the bytes may be gone")


class Request(Message):
    """One chat request. Only ``body`` is required, or ``body_claim`` in its place."""

    SCHEMA: ClassVar[str] = "request.v1"

    body: dict[str, Any] = Field(default_factory=dict, description="OpenAI /v1/chat/completions body")
    body_claim: Claim | None = Field(
        default=None, description="instead of body when it is over 256 KiB; written by the gateway, never by users"
    )
    request_id: Identifier | None = Field(
        default=None, description="unique per tenant; missing: derived from topic, partition and offset"
    )
    tenant: TenantName = ""
    cache_salt: str | None = Field(default=None, max_length=256)
    lora: str | None = Field(default=None, max_length=256)
    priority: Int64 = 0
    session_id: Identifier | None = None
    reply_to: ResponsesTopic | None = None
    route_only: bool = False
    book: bool = Field(default=False, description="route_only: count the load until POST /v1/route/{id}/done")
    identity: str | None = Field(
        default=None, pattern="^(url|content|validated)$", description="overrides the model's media identity mode"
    )
    deadline_ms: Int64 | None = Field(default=None, description="wall milliseconds; default created_at + 120 s")
    created_at_ms: Int64 | None = Field(default=None, description="wall milliseconds; default the record's timestamp")


class Envelope(Message):
    """What every stage after the first carries along unchanged."""

    request_id: Identifier
    tenant: TenantName = ""
    model: str = Field(max_length=256)
    cache_salt: str | None = None
    lora: str | None = None
    priority: Int64 = 0
    session_id: Identifier | None = None
    reply_to: ResponsesTopic | None = None
    route_only: bool = False
    book: bool = False
    stream: bool = False
    deadline_ms: Int64
    created_at_ms: Int64
    timings_ms: dict[str, float] = Field(default_factory=dict, description="milliseconds spent, by stage")

    @property
    def key(self) -> str:
        """Kafka key: tenant and request id."""
        return request_key(self.tenant, self.request_id)
