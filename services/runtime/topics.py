"""The topic table: names, keys, partitions, retention, who writes and who reads. It stands once, here.

It creates the topics, the AsyncAPI document and the documentation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.control import Control
from schemas.decision import Decision
from schemas.expanded import Expanded
from schemas.kv_event import KvEvents
from schemas.lifecycle import Lifecycle
from schemas.media import MediaResolved
from schemas.request import Request
from schemas.types import Message
from schemas.work import Response, Work
from schemas.worker import Heartbeat, Worker

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
REPLAY_RETENTION_MS = 25 * HOUR_MS
RECORD_LIMIT_BYTES = 1 << 20
DEAD_LETTER_LIMIT_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic, or with ``{}`` in its name a pattern of topics made at run time."""

    name: str
    key: str
    partitions: int
    message: type[Message] | None
    written_by: str
    read_by: str
    config: dict[str, str] = field(default_factory=dict)
    purpose: str = ""


def _delete(retention_ms: int, segment_ms: int | None = None) -> dict[str, str]:
    config = {"cleanup.policy": "delete", "retention.ms": str(retention_ms)}
    if segment_ms is not None:
        config["segment.ms"] = str(segment_ms)
    return config


REQUESTS = Topic(
    "kvroute.requests.v1", "request", 12, Request, "gateway, users", "media (group)", _delete(DAY_MS),
    "chat requests as they come in",
)
MEDIA_RESOLVED = Topic(
    "kvroute.media-resolved.v1", "request", 12, MediaResolved, "media", "layout (group)", _delete(2 * HOUR_MS),
    "requests whose images and videos are identified",
)
EXPANDED = Topic(
    "kvroute.expanded.v1", "request", 12, Expanded, "layout", "router (group)", _delete(2 * HOUR_MS),
    "requests reduced to block addresses",
)
DECISIONS = Topic(
    "kvroute.decisions.v1", "request", 12, Decision, "router", "audit (group); every router (projection)",
    _delete(REPLAY_RETENTION_MS), "which worker was chosen and why",
)
LIFECYCLE = Topic(
    "kvroute.lifecycle.v1", "request", 12, Lifecycle, "any stage, agents", "audit (group); every router (projection)",
    _delete(REPLAY_RETENTION_MS), "what happened to requests",
)
KV_EVENTS = Topic(
    "kvroute.kv-events.v1", "worker", 12, KvEvents, "agents", "every router (projection)",
    _delete(REPLAY_RETENTION_MS, 5 * MINUTE_MS), "cache changes of workers; partitions are never grown in place",
)
WORKERS = Topic(
    "kvroute.workers.v1", "worker", 1, Worker, "agents, kvroute worker retire",
    "layout, router, gateway, audit (projection)",
    {"cleanup.policy": "compact", "segment.ms": str(10 * MINUTE_MS)}, "registrations",
)
HEARTBEATS = Topic(
    "kvroute.heartbeats.v1", "worker", 1, Heartbeat, "agents (every 2 s)", "router, gateway (projection)",
    _delete(10 * MINUTE_MS, 2 * MINUTE_MS), "leases, load, snapshot positions",
)
CONTROL = Topic(
    "kvroute.control.v1", "request or worker", 1, Control, "gateway, router, operator",
    "media, layout, router, agents (from the end)", _delete(10 * MINUTE_MS), "cancel, snapshot, drain",
)
DEAD_LETTERS = Topic(
    "kvroute.dead-letters.v1", "original key", 3, None, "any stage", "kvroute dlq, audit",
    _delete(7 * DAY_MS) | {"max.message.bytes": str(DEAD_LETTER_LIMIT_BYTES)},
    "records that could not be handled: value raw, metadata in headers",
)
WORK = Topic(
    "kvroute.work.{}.v1", "request", 1, Work, "router", "that agent (assigned)", _delete(2 * HOUR_MS),
    "decided requests for one worker",
)
RESPONSES = Topic(
    "kvroute.responses.{}.v1", "request", 1, Response, "agents, any stage on refusal", "that gateway or that user",
    _delete(HOUR_MS), "answers",
)

TOPICS = (
    REQUESTS, MEDIA_RESOLVED, EXPANDED, DECISIONS, LIFECYCLE, KV_EVENTS, WORKERS, HEARTBEATS, CONTROL, DEAD_LETTERS,
)
"""Topics that exist from the start."""

PATTERNS = (WORK, RESPONSES)
"""Topics made when an agent or a gateway starts."""

RESPONSES_PREFIX = "kvroute.responses."


def work_topic(worker_id: str) -> str:
    """The topic of one agent's work."""
    return WORK.name.format(worker_id)


def responses_topic(instance: str) -> str:
    """The topic one gateway instance reads its answers from."""
    return RESPONSES.name.format(instance)
