"""The audit store: requests, media, decisions, candidates, outcomes, workers, contracts, dead letters

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)
JSON = sa.JSON().with_variant(JSONB(), "postgresql")
TABLES = ("requests", "media", "decisions", "candidates", "outcomes", "workers", "contracts", "dead_letters")


def _partitioned(name: str, *columns: Any, comment: str) -> None:
    """A table by days, with the default partition that takes rows of days that have none."""
    op.create_table(name, *columns, comment=comment, postgresql_partition_by="RANGE (created_at)")
    if op.get_context().dialect.name == "postgresql":
        op.execute(f"CREATE TABLE {name}_default PARTITION OF {name} DEFAULT")


def upgrade() -> None:
    _partitioned(
        "requests",
        sa.Column("created_at", MOMENT, nullable=False, comment="when the request was made"),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("model", sa.Text()),
        sa.Column("lora", sa.Text()),
        sa.Column("session_id", sa.String(128)),
        sa.Column("priority", sa.BigInteger()),
        sa.Column("stream", sa.Boolean()),
        sa.Column("route_only", sa.Boolean()),
        sa.Column("deadline_at", MOMENT),
        sa.Column("accepted_at", MOMENT, comment="when the first stage took it"),
        sa.Column("attempts", sa.SmallInteger(), comment="the highest attempt that was decided"),
        sa.PrimaryKeyConstraint("created_at", "tenant", "request_id", name="pk_requests"),
        comment="One row a request",
    )
    op.create_index("ix_requests_request_id", "requests", ["request_id"])
    _partitioned(
        "media",
        sa.Column("created_at", MOMENT, nullable=False, comment="when the request was made"),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("item", sa.SmallInteger(), nullable=False, comment="place in prompt order, from 0"),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("identity", sa.String(16), comment="scoped media identity; null: not identified"),
        sa.Column("source", sa.String(16), nullable=False, comment="url, content, client, none"),
        sa.Column("forwarded", sa.Boolean(), nullable=False, comment="the engine was told the identity"),
        sa.Column("width", sa.Integer()),
        sa.Column("height", sa.Integer()),
        sa.Column("size_bytes", sa.BigInteger()),
        sa.Column("frames", sa.Integer()),
        sa.Column("tokens", sa.Integer(), comment="placeholder tokens in the prompt"),
        sa.Column("token_offset", sa.Integer(), comment="where its placeholder starts"),
        sa.Column("host", sa.Text()),
        sa.Column("path", sa.Text(), comment="without query"),
        sa.Column("url_hash", sa.String(16)),
        sa.Column("reason", sa.String(40)),
        sa.PrimaryKeyConstraint("created_at", "tenant", "request_id", "item", name="pk_media"),
        comment="Images and videos of decided requests",
    )
    op.create_index("ix_media_identity", "media", ["identity"])
    _partitioned(
        "decisions",
        sa.Column("created_at", MOMENT, nullable=False, comment="when the request was made"),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("decided_at", MOMENT, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False, comment="routed, no_worker, all_busy"),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("lora", sa.Text()),
        sa.Column("session_id", sa.String(128)),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("route_only", sa.Boolean(), nullable=False),
        sa.Column("deadline_at", MOMENT, nullable=False),
        sa.Column("worker_id", sa.String(64)),
        sa.Column("dp_rank", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.BigInteger()),
        sa.Column("mode", sa.String(16), nullable=False, comment="exact, text_prefix, load_only"),
        sa.Column("reason", sa.String(40), comment="why the view is not exact to its end"),
        sa.Column("detail", sa.Text()),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("block_size", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("exact_tokens", sa.Integer(), nullable=False),
        sa.Column("total_blocks", sa.Integer(), nullable=False),
        sa.Column("overlap_confirmed", sa.Integer(), nullable=False, comment="blocks the worker's events say it holds"),
        sa.Column(
            "overlap_predicted", sa.Integer(), nullable=False, comment="blocks, with recent decisions counted as held"
        ),
        sa.Column("usable_blocks", sa.Integer(), nullable=False),
        sa.Column("predicted_tokens", sa.Integer(), nullable=False, comment="compare with outcomes.cached_tokens"),
        sa.Column("candidate_count", sa.Integer(), nullable=False, comment="slots that could have been chosen"),
        sa.Column("rest_min_cost", sa.Float(53), comment="of the candidates without a row"),
        sa.Column("rest_max_cost", sa.Float(53)),
        sa.Column("ties", sa.Integer(), nullable=False),
        sa.Column("margin", sa.Float(53), comment="cost of the next best minus the chosen, in blocks"),
        sa.Column("seed", sa.String(16), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("policy_version", sa.Text(), nullable=False),
        sa.Column("parameters", JSON, nullable=False),
        sa.Column("router", sa.Text(), nullable=False),
        sa.Column("excluded", JSON, nullable=False),
        sa.Column("projection", JSON, nullable=False, comment="kv-events read so far: [topic, partition, offset] each"),
        sa.Column("expanded_partition", sa.Integer(), nullable=False),
        sa.Column("expanded_offset", sa.BigInteger(), nullable=False),
        sa.Column("record_partition", sa.Integer(), nullable=False, comment="where the decision's own record stands"),
        sa.Column("record_offset", sa.BigInteger(), nullable=False),
        sa.Column("media_count", sa.Integer(), nullable=False),
        sa.Column("timings", JSON, nullable=False, comment="milliseconds by stage"),
        sa.Column(
            "addresses", sa.Text(), nullable=False, comment="the prompt's block addresses, 16 hex digits each, joined"
        ),
        sa.PrimaryKeyConstraint("created_at", "tenant", "request_id", "attempt", name="pk_decisions"),
        comment="One row an attempt: the first record in the decisions topic",
    )
    op.create_index("ix_decisions_request_id", "decisions", ["request_id"])
    _partitioned(
        "candidates",
        sa.Column("created_at", MOMENT, nullable=False, comment="when the request was made"),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("rank", sa.SmallInteger(), nullable=False, comment="0 is the chosen one, then by cost"),
        sa.Column("chosen", sa.Boolean(), nullable=False),
        sa.Column("worker_id", sa.String(64), nullable=False),
        sa.Column("dp_rank", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("overlap_device", sa.Integer(), nullable=False),
        sa.Column("overlap_host", sa.Integer(), nullable=False),
        sa.Column("overlap_disk", sa.Integer(), nullable=False),
        sa.Column("overlap_predicted", sa.Integer(), nullable=False),
        sa.Column("active_prefill_tokens", sa.Integer(), nullable=False),
        sa.Column("active_decode_blocks", sa.Integer(), nullable=False),
        sa.Column("active_requests", sa.Integer(), nullable=False),
        sa.Column("new_decode_blocks", sa.Integer(), nullable=False),
        sa.Column("vision_tokens", sa.Integer(), nullable=False),
        sa.Column("prefill_cost", sa.Float(53), nullable=False),
        sa.Column("decode_cost", sa.Float(53), nullable=False),
        sa.Column("request_cost", sa.Float(53), nullable=False),
        sa.Column("cost", sa.Float(53), nullable=False, comment="blocks, lower is better"),
        sa.Column("uncertain", sa.Boolean(), nullable=False, comment="the slot's index had a gap"),
        sa.Column("reported", JSON, nullable=False, comment="load as the last heartbeat said"),
        sa.PrimaryKeyConstraint("created_at", "tenant", "request_id", "attempt", "rank", name="pk_candidates"),
        comment="The chosen slot and the best others, with every term of their cost",
    )
    _partitioned(
        "outcomes",
        sa.Column("created_at", MOMENT, nullable=False, comment="when the request was made"),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False, comment="0: ended before any decision"),
        sa.Column("status", sa.String(16), comment="finished, failed, cancelled, refused; null: still running"),
        sa.Column("stage", sa.String(32), comment="who stated the end"),
        sa.Column("worker_id", sa.String(64)),
        sa.Column("dp_rank", sa.Integer()),
        sa.Column("epoch", sa.BigInteger()),
        sa.Column("accepted_at", MOMENT, comment="when the agent took the attempt"),
        sa.Column("first_token_at", MOMENT),
        sa.Column("ended_at", MOMENT),
        sa.Column("ttft_ms", sa.BigInteger(), comment="first token, since the request was made"),
        sa.Column("total_ms", sa.BigInteger(), comment="end, since the request was made"),
        sa.Column("prompt_tokens", sa.Integer(), comment="as the engine counted"),
        sa.Column("completion_tokens", sa.Integer()),
        sa.Column("cached_tokens", sa.Integer(), comment="prompt tokens the engine found in its cache"),
        sa.Column("http_status", sa.Integer()),
        sa.Column("code", sa.Text()),
        sa.Column("detail", sa.Text()),
        sa.Column("before_output", sa.Boolean(), comment="it ended before anything was answered"),
        sa.Column("retryable", sa.Boolean()),
        sa.Column("timings", JSON),
        sa.PrimaryKeyConstraint("created_at", "tenant", "request_id", "attempt", name="pk_outcomes"),
        comment="What became of each attempt, as the engine and the stages reported it",
    )
    op.create_table(
        "workers",
        sa.Column("created_at", MOMENT, nullable=False, comment="the epoch as a moment"),
        sa.Column("worker_id", sa.String(64), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("dp_size", sa.Integer(), nullable=False),
        sa.Column("engine", sa.String(32), nullable=False),
        sa.Column("engine_version", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("loras", JSON, nullable=False),
        sa.Column("block_size", sa.Integer(), nullable=False),
        sa.Column("max_concurrency", sa.Integer(), nullable=False),
        sa.Column("max_model_len", sa.Integer()),
        sa.Column("num_blocks", sa.Integer()),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("created_at", "worker_id", "epoch", name="pk_workers"),
        comment="One row a life of a worker",
    )
    op.create_table(
        "contracts",
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("worker_id", sa.String(64), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("modality", sa.String(8), nullable=False, comment="text, image, video"),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("proven", sa.Boolean(), nullable=False),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("verbatim_identity", sa.Boolean()),
        sa.Column("max_pixels", sa.BigInteger()),
        sa.Column("detail", sa.Text()),
        sa.PrimaryKeyConstraint("created_at", "worker_id", "epoch", "modality", name="pk_contracts"),
        comment="What probing proved of a worker's layout",
    )
    op.create_table(
        "dead_letters",
        sa.Column("created_at", MOMENT, nullable=False, comment="timestamp of the original record"),
        sa.Column("record_topic", sa.String(249), nullable=False),
        sa.Column("record_partition", sa.Integer(), nullable=False),
        sa.Column("record_offset", sa.BigInteger(), nullable=False),
        sa.Column("dead_at", MOMENT, nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("record_key", sa.Text(), comment="the original key; bytes that are no text are escaped"),
        sa.Column("size_bytes", sa.Integer(), nullable=False, comment="of the original value, which is not kept here"),
        sa.Column("redriven", sa.SmallInteger(), nullable=False, comment="times it had been sent again before"),
        sa.Column("letter_partition", sa.Integer(), nullable=False, comment="where the dead letter stands"),
        sa.Column("letter_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "created_at", "record_topic", "record_partition", "record_offset", name="pk_dead_letters"
        ),
        comment="Records that could not be handled",
    )


def downgrade() -> None:
    for name in reversed(TABLES):
        op.drop_table(name)
