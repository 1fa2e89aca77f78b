"""Every Prometheus metric, once: name, kind, labels, meaning. The documentation table is generated from here.

A stage adds its metrics in its own section below, through ``counter``, ``gauge`` or ``histogram``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import Counter, Gauge, Histogram

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

_SLOT = ("worker", "rank")


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """What a metric is, for people."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


CATALOGUE: list[MetricInfo] = []
"""All metrics in the order they are declared."""


def counter(name: str, meaning: str, labels: Sequence[str] = ()) -> Counter:
    """Declare a counter; ``name`` ends in ``_total``."""
    CATALOGUE.append(MetricInfo(name, "counter", tuple(labels), meaning))
    return Counter(name, meaning, tuple(labels))


def gauge(name: str, meaning: str, labels: Sequence[str] = ()) -> Gauge:
    """Declare a gauge; the unit is the end of the name."""
    CATALOGUE.append(MetricInfo(name, "gauge", tuple(labels), meaning))
    return Gauge(name, meaning, tuple(labels))


def histogram(name: str, meaning: str, labels: Sequence[str] = (), buckets: Sequence[float] = SECONDS) -> Histogram:
    """Declare a histogram; default buckets are seconds from 1 ms to 2 minutes."""
    CATALOGUE.append(MetricInfo(name, "histogram", tuple(labels), meaning))
    return Histogram(name, meaning, tuple(labels), buckets=tuple(buckets))


def topic_label(topic: str) -> str:
    """A topic as a label value: topics made per worker or gateway share one, so that labels stay few."""
    for head in ("kvroute.work.", "kvroute.responses."):
        if topic.startswith(head):
            return f"{head}{{}}"
    return topic


# Runtime: consuming
RECORDS_HANDLED = counter("kvroute_records_handled_total", "records a stage handled to their end", ("stage", "topic"))
RECORDS_RETRIED = counter(
    "kvroute_records_retried_total", "tries that failed for a cause that may heal", ("stage", "topic", "code")
)
RECORDS_DEAD_LETTERED = counter(
    "kvroute_records_dead_lettered_total", "records that could not be handled, by cause", ("stage", "topic", "code")
)
RECORDS_IN_FLIGHT = gauge(
    "kvroute_records_in_flight", "records taken from the broker and not finished", ("stage", "topic")
)
HANDLE_SECONDS = histogram(
    "kvroute_record_handle_seconds", "time from the start of a record's first try to its end", ("stage", "topic")
)
OWN_FAILURES_IN_A_ROW = gauge(
    "kvroute_own_failures_in_a_row", "failures of ours (broker, database, bug) since the last success", ("stage",)
)
CONSUMER_LAG = gauge(
    "kvroute_consumer_lag_records", "highwater minus the lowest unfinished offset", ("stage", "topic", "partition")
)
OLDEST_UNHANDLED_SECONDS = gauge(
    "kvroute_oldest_unhandled_seconds", "age of the oldest record that is taken and not finished", ("stage", "topic")
)
COMMIT_FAILURES = counter("kvroute_commit_failures_total", "offset commits that failed", ("stage", "topic"))
REBALANCES = counter("kvroute_rebalances_total", "partition assignments and revocations", ("stage", "topic", "kind"))

# Runtime: publishing
RECORDS_SENT = counter("kvroute_records_sent_total", "records the broker acknowledged", ("stage", "topic"))
SEND_FAILURES = counter("kvroute_send_failures_total", "records the broker did not take", ("stage", "topic"))

# Runtime: projections
PROJECTION_POSITION = gauge("kvroute_projection_position", "next offset a projection reads", ("topic", "partition"))
PROJECTION_LAG = gauge(
    "kvroute_projection_lag_records", "highwater minus position of a projection", ("topic", "partition")
)
PROJECTION_ERRORS = counter(
    "kvroute_projection_errors_total", "records a projection could not apply and skipped", ("stage", "topic")
)

# Runtime: process
LOOP_LAG_SECONDS = gauge("kvroute_loop_lag_seconds", "how late the event loop runs timers, worst of the last 10 s")
JOB_FAILURES = counter("kvroute_job_failures_total", "runs of periodic jobs that raised", ("stage", "job"))
STAGE_READY = gauge("kvroute_stage_ready", "1 when /readyz says yes", ("stage",))
OFFLOADED_SECONDS = histogram("kvroute_offloaded_seconds", "work moved off the event loop", ("where",))

# Audit
AUDIT_BATCH_RECORDS = histogram(
    "kvroute_audit_batch_records",
    "records one transaction of the audit store took",
    (),
    (1, 2, 5, 10, 20, 50, 100, 200, 500),
)
AUDIT_WRITE_SECONDS = histogram("kvroute_audit_write_seconds", "time of one transaction of the audit store")
AUDIT_RECORDS_REJECTED = counter(
    "kvroute_audit_records_rejected_total", "dead letters and registrations the audit store could not take", ("topic",)
)
AUDIT_DATABASE_UP = gauge("kvroute_audit_database_up", "1 when the audit store answers and has this build's schema")

# Media
MEDIA_ITEMS = counter(
    "kvroute_media_items_total", "media in requests, by kind, identity source and what ends exactness",
    ("kind", "source", "reason"),
)  # fmt: skip
MEDIA_FETCHES = counter(
    "kvroute_media_fetches_total", "fetches: check (fence only), size (header), whole; and how they ended",
    ("what", "outcome"),
)  # fmt: skip
MEDIA_FETCHED_BYTES = counter("kvroute_media_fetched_bytes_total", "bytes of media received")
MEDIA_SIZES_REMEMBERED = counter(
    "kvroute_media_sizes_total", "sizes of URLs that were asked for, by whether they were remembered", ("cache",)
)
MEDIA_IDENTITIES_REMEMBERED = counter(
    "kvroute_media_identities_total",
    "media that were asked for by content: taken from the cache as fresh, asked of their server again, or fetched",
    ("cache",),
)
MEDIA_HELD_BYTES = gauge("kvroute_media_held_bytes", "bytes of media in memory, over all requests")

# Layout
LAYOUT_SECONDS = histogram("kvroute_layout_seconds", "time to lay out one request: template, tokens, media, addresses")
LAYOUT_VIEWS = counter(
    "kvroute_layout_views_total",
    "requests laid out, by model and by the reason their view is not exact (empty: exact)",
    ("model", "reason"),
)

# Router
ROUTER_DECISIONS = counter(
    "kvroute_router_decisions_total", "decisions made, by outcome and by how much of the prompt could be matched",
    ("outcome", "mode"),
)  # fmt: skip
ROUTER_DECIDE_SECONDS = histogram(
    "kvroute_router_decide_seconds", "time to choose a slot: match, cost, choice, record", (),
    (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
)  # fmt: skip
ROUTER_PROMPT_BLOCKS = counter("kvroute_router_prompt_blocks_total", "full blocks of prompts that were routed")
ROUTER_OVERLAP_BLOCKS = counter(
    "kvroute_router_overlap_blocks_total", "blocks of prompts that the chosen slot was known to hold"
)
ROUTER_ENCODER_TOKENS = counter(
    "kvroute_router_encoder_tokens_total", "media tokens without KV whose encoder output the chosen slot still held"
)
ROUTER_ATTEMPTS_FAILED = counter(
    "kvroute_router_attempts_failed_total", "attempts that did not end well, by what the router did next and why",
    ("step", "cause"),
)  # fmt: skip
ROUTER_REPEATED = counter(
    "kvroute_router_repeated_total", "requests read again after their decision, by what was done", ("done",)
)
ROUTER_LOST_DECISIONS = counter(
    "kvroute_router_lost_decisions_total", "own decisions that another router's came before: cancelled at the worker"
)
ROUTER_KV_ADDRESSES = counter("kvroute_router_kv_addresses_total", "addresses in KV event changes", ("op",))
ROUTER_KV_ANOMALIES = counter(
    "kvroute_router_kv_anomalies_total", "KV event records that were not as they should be", ("kind",)
)
ROUTER_SNAPSHOTS_ASKED = counter("kvroute_router_snapshots_asked_total", "snapshots asked for from agents")
ROUTER_INDEX_ENTRIES = gauge("kvroute_router_index_entries", "addresses in the index, over all models and tiers")
ROUTER_UNCERTAIN_SLOTS = gauge("kvroute_router_uncertain_slots", "slots whose index had a gap and no snapshot since")
ROUTER_REQUESTS_OPEN = gauge("kvroute_router_requests_open", "requests decided and not ended")

# Gateway
GATEWAY_REQUESTS = counter("kvroute_gateway_requests_total", "HTTP requests by route and status", ("route", "status"))
GATEWAY_IN_FLIGHT = gauge("kvroute_gateway_in_flight", "chat and route requests being served")
GATEWAY_FIRST_PIECE_SECONDS = histogram(
    "kvroute_gateway_first_piece_seconds", "from the request's publishing to the first piece of its answer", ("kind",)
)
GATEWAY_ENDED = counter("kvroute_gateway_ended_total", "how answers ended: final, or why they were given up", ("why",))
GATEWAY_PIECES = counter(
    "kvroute_gateway_pieces_total", "pieces of answers that came, by what became of them", ("fate",)
)

# Agent
AGENT_FACTS = counter(
    "kvroute_agent_facts_total", "facts stated about attempts: first_token, finished, failed, …", ("worker", "event")
)
AGENT_BOUND_MEDIA = gauge(
    "kvroute_agent_bound_media", "media whose changed names in the engine's events are known", ("worker",)
)
AGENT_RUNNING = gauge("kvroute_agent_running", "attempts in hand", ("worker",))
AGENT_EVENT_BATCHES = gauge("kvroute_agent_event_batches", "engine event batches followed in this epoch", _SLOT)
AGENT_EVENT_LOSSES = gauge("kvroute_agent_event_losses", "times in this epoch that events were lost for good", _SLOT)
AGENT_RESIDENT_BLOCKS = gauge("kvroute_agent_resident_blocks", "blocks published as resident", (*_SLOT, "tier"))
AGENT_ENCODER_OUTPUTS = gauge("kvroute_agent_encoder_outputs", "media whose encoder outputs are surely held", _SLOT)
AGENT_UNADDRESSED_BLOCKS = gauge(
    "kvroute_agent_unaddressed_blocks", "blocks announced in this epoch that got no address, by cause",
    (*_SLOT, "cause"),
)  # fmt: skip
AGENT_STREAM_STALLED = gauge("kvroute_agent_stream_stalled", "1 while the broker takes no kv-events record", _SLOT)
