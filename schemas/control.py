"""``kvroute.control.v1``: short-lived orders: cancel a request, ask a slot for a snapshot, drain a worker."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from schemas.types import Identifier, Int64, Message, TenantName, WorkerId, request_key


class ControlKind(StrEnum):
    """What is ordered."""

    CANCEL = "cancel"
    SNAPSHOT = "snapshot"
    DRAIN = "drain"
    DONE = "done"


class Control(Message):
    """An order. ``cancel`` and ``done`` name a request (attempt 0: all attempts); the others name a worker."""

    SCHEMA: ClassVar[str] = "control.v1"

    kind: ControlKind
    at_ms: Int64
    request_id: Identifier | None = None
    tenant: TenantName = ""
    attempt: Int64 = Field(default=0, ge=0)
    worker_id: WorkerId | None = None
    dp_rank: Int64 | None = None
    epoch: Int64 | None = None
    reason: str = Field(default="", max_length=200)

    @property
    def key(self) -> str:
        """Kafka key: the request, or the worker."""
        if self.request_id is not None:
            return request_key(self.tenant, self.request_id)
        return self.worker_id or ""
