"""The audit store's tables: SQLAlchemy Core, one definition for PostgreSQL and SQLite.

Keys start with ``created_at``, the moment the request was made: PostgreSQL partitions by it, and the same record
delivered twice meets its own row. No table refers to another by foreign key: a decision and its outcome come through
different topics and either may be first. The migrations create what stands here; a test compares the two.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Column, Float, Index, MetaData, PrimaryKeyConstraint, SmallInteger, String, Table, Text

from services.audit.columns import Big, Count, Hex64Column, Json, Moment

metadata = MetaData(
    naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(table_name)s_%(column_0_N_name)s"},
)


def _request_key(*more: Column[Any]) -> list[Any]:
    """The columns every table about requests starts with, and its primary key."""
    columns: list[Column[Any]] = [
        Column("created_at", Moment, nullable=False, comment="when the request was made"),
        Column("tenant", String(64), nullable=False),
        Column("request_id", String(128), nullable=False),
        *more,
    ]
    return [*columns, PrimaryKeyConstraint(*[column.name for column in columns])]


def _partitioned(name: str, *arguments: Any, comment: str) -> Table:
    return Table(name, metadata, *arguments, comment=comment, postgresql_partition_by="RANGE (created_at)")


requests = _partitioned(
    "requests",
    *_request_key(),
    Column("model", Text),
    Column("lora", Text),
    Column("session_id", String(128)),
    Column("priority", Big),
    Column("stream", Boolean),
    Column("route_only", Boolean),
    Column("deadline_at", Moment),
    Column("accepted_at", Moment, comment="when the first stage took it"),
    Column("attempts", SmallInteger, comment="the highest attempt that was decided"),
    Index("ix_requests_request_id", "request_id"),
    comment="One row a request",
)

media = _partitioned(
    "media",
    *_request_key(Column("item", SmallInteger, nullable=False, comment="place in prompt order, from 0")),
    Column("kind", String(16), nullable=False),
    Column("identity", Hex64Column, comment="scoped media identity; null: not identified"),
    Column("source", String(16), nullable=False, comment="url, content, client, none"),
    Column("forwarded", Boolean, nullable=False, comment="the engine was told the identity"),
    Column("width", Count),
    Column("height", Count),
    Column("size_bytes", Big),
    Column("frames", Count),
    Column("tokens", Count, comment="placeholder tokens in the prompt"),
    Column("token_offset", Count, comment="where its placeholder starts"),
    Column("host", Text),
    Column("path", Text, comment="without query"),
    Column("url_hash", Hex64Column),
    Column("reason", String(40)),
    Index("ix_media_identity", "identity"),
    comment="Images and videos of decided requests",
)

decisions = _partitioned(
    "decisions",
    *_request_key(Column("attempt", SmallInteger, nullable=False)),
    Column("decided_at", Moment, nullable=False),
    Column("outcome", String(16), nullable=False, comment="routed, no_worker, all_busy"),
    Column("model", Text, nullable=False),
    Column("lora", Text),
    Column("session_id", String(128)),
    Column("priority", Big, nullable=False),
    Column("route_only", Boolean, nullable=False),
    Column("deadline_at", Moment, nullable=False),
    Column("worker_id", String(64)),
    Column("dp_rank", Count, nullable=False),
    Column("epoch", Big),
    Column("mode", String(16), nullable=False, comment="exact, text_prefix, load_only"),
    Column("reason", String(40), comment="why the view is not exact to its end"),
    Column("detail", Text),
    Column("variant", Text, nullable=False),
    Column("block_size", Count, nullable=False),
    Column("prompt_tokens", Count, nullable=False),
    Column("exact_tokens", Count, nullable=False),
    Column("total_blocks", Count, nullable=False),
    Column("overlap_confirmed", Count, nullable=False, comment="blocks the worker's events say it holds"),
    Column("overlap_predicted", Count, nullable=False, comment="blocks, with recent decisions counted as held"),
    Column("usable_blocks", Count, nullable=False),
    Column("predicted_tokens", Count, nullable=False, comment="compare with outcomes.cached_tokens"),
    Column("candidate_count", Count, nullable=False, comment="slots that could have been chosen"),
    Column("rest_min_cost", Float(53), comment="of the candidates without a row"),
    Column("rest_max_cost", Float(53)),
    Column("ties", Count, nullable=False),
    Column("margin", Float(53), comment="cost of the next best minus the chosen, in blocks"),
    Column("seed", Hex64Column, nullable=False),
    Column("policy", Text, nullable=False),
    Column("policy_version", Text, nullable=False),
    Column("parameters", Json, nullable=False),
    Column("router", Text, nullable=False),
    Column("excluded", Json, nullable=False),
    Column("projection", Json, nullable=False, comment="kv-events read so far: [topic, partition, offset] each"),
    Column("expanded_partition", Count, nullable=False),
    Column("expanded_offset", Big, nullable=False),
    Column("record_partition", Count, nullable=False, comment="where the decision's own record stands"),
    Column("record_offset", Big, nullable=False),
    Column("media_count", Count, nullable=False),
    Column("timings", Json, nullable=False, comment="milliseconds by stage"),
    Column("addresses", Text, nullable=False, comment="the prompt's block addresses, 16 hex digits each, joined"),
    Index("ix_decisions_request_id", "request_id"),
    comment="One row an attempt: the first record in the decisions topic",
)

candidates = _partitioned(
    "candidates",
    *_request_key(
        Column("attempt", SmallInteger, nullable=False),
        Column("rank", SmallInteger, nullable=False, comment="0 is the chosen one, then by cost"),
    ),
    Column("chosen", Boolean, nullable=False),
    Column("worker_id", String(64), nullable=False),
    Column("dp_rank", Count, nullable=False),
    Column("epoch", Big, nullable=False),
    Column("overlap_device", Count, nullable=False),
    Column("overlap_host", Count, nullable=False),
    Column("overlap_disk", Count, nullable=False),
    Column("overlap_predicted", Count, nullable=False),
    Column("active_prefill_tokens", Count, nullable=False),
    Column("active_decode_blocks", Count, nullable=False),
    Column("active_requests", Count, nullable=False),
    Column("new_decode_blocks", Count, nullable=False),
    Column("vision_tokens", Count, nullable=False),
    Column(
        "encoder_tokens", Count, nullable=False, server_default="0",
        comment="of vision_tokens: encoder output still held",
    ),
    Column("prefill_cost", Float(53), nullable=False),
    Column("decode_cost", Float(53), nullable=False),
    Column("request_cost", Float(53), nullable=False),
    Column("cost", Float(53), nullable=False, comment="blocks, lower is better"),
    Column("uncertain", Boolean, nullable=False, comment="the slot's index had a gap"),
    Column("reported", Json, nullable=False, comment="load as the last heartbeat said"),
    comment="The chosen slot and the best others, with every term of their cost",
)

outcomes = _partitioned(
    "outcomes",
    *_request_key(Column("attempt", SmallInteger, nullable=False, comment="0: ended before any decision")),
    Column("status", String(16), comment="finished, failed, cancelled, refused; null: still running"),
    Column("stage", String(32), comment="who stated the end"),
    Column("worker_id", String(64)),
    Column("dp_rank", Count),
    Column("epoch", Big),
    Column("accepted_at", Moment, comment="when the agent took the attempt"),
    Column("first_token_at", Moment),
    Column("ended_at", Moment),
    Column("ttft_ms", Big, comment="first token, since the request was made; not streamed: the answer"),
    Column("total_ms", Big, comment="end, since the request was made"),
    Column("prompt_tokens", Count, comment="as the engine counted"),
    Column("completion_tokens", Count),
    Column("cached_tokens", Count, comment="prompt tokens the engine found in its cache"),
    Column("http_status", Count),
    Column("code", Text),
    Column("detail", Text),
    Column("before_output", Boolean, comment="it ended before anything was answered"),
    Column("retryable", Boolean),
    Column("timings", Json),
    comment="What became of each attempt, as the engine and the stages reported it",
)

workers = Table(
    "workers",
    metadata,
    Column("created_at", Moment, nullable=False, comment="the epoch as a moment"),
    Column("worker_id", String(64), nullable=False),
    Column("epoch", Big, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("state", String(16), nullable=False),
    Column("dp_size", Count, nullable=False),
    Column("engine", String(32), nullable=False),
    Column("engine_version", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("loras", Json, nullable=False),
    Column("block_size", Count, nullable=False),
    Column("max_concurrency", Count, nullable=False),
    Column("max_model_len", Count),
    Column("num_blocks", Count),
    Column("agent", Text, nullable=False),
    PrimaryKeyConstraint("created_at", "worker_id", "epoch"),
    comment="One row a life of a worker",
)

contracts = Table(
    "contracts",
    metadata,
    Column("created_at", Moment, nullable=False),
    Column("worker_id", String(64), nullable=False),
    Column("epoch", Big, nullable=False),
    Column("modality", String(8), nullable=False, comment="text, image, video"),
    Column("updated_at", Moment, nullable=False),
    Column("model", Text, nullable=False),
    Column("proven", Boolean, nullable=False),
    Column("variant", Text, nullable=False),
    Column("verbatim_identity", Boolean),
    Column("max_pixels", Big),
    Column("detail", Text),
    PrimaryKeyConstraint("created_at", "worker_id", "epoch", "modality"),
    comment="What probing proved of a worker's layout",
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("created_at", Moment, nullable=False, comment="timestamp of the original record"),
    Column("record_topic", String(249), nullable=False),
    Column("record_partition", Count, nullable=False),
    Column("record_offset", Big, nullable=False),
    Column("dead_at", Moment, nullable=False),
    Column("stage", Text, nullable=False),
    Column("code", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("record_key", Text, comment="the original key; bytes that are no text are escaped"),
    Column("size_bytes", Count, nullable=False, comment="of the original value, which is not kept here"),
    Column("redriven", SmallInteger, nullable=False, comment="times it had been sent again before"),
    Column("letter_partition", Count, nullable=False, comment="where the dead letter stands"),
    Column("letter_offset", Big, nullable=False),
    PrimaryKeyConstraint("created_at", "record_topic", "record_partition", "record_offset"),
    comment="Records that could not be handled",
)

PARTITIONED: tuple[Table, ...] = (requests, media, decisions, candidates, outcomes)
"""Tables PostgreSQL keeps in one partition a day."""
