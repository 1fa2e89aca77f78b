"""The audit views: SQL written once, the same names and columns on PostgreSQL and SQLite.

Views hold no data, so they are no part of the numbered migrations: every migration run drops them first and makes them
again from here afterwards (``services.audit.migrate``). Changing one therefore needs a migration, even an empty one.
The few functions the two databases name differently stand in ``DIALECTS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class View:
    """One view: what it answers, its SQL and a query to try."""

    name: str
    answers: str
    sql: str
    example: str


DIALECTS: dict[str, Callable[[str], str]] = {
    "postgresql": lambda moment: f"date_trunc('hour', {moment}, 'UTC')",
    "sqlite": lambda moment: f"strftime('%Y-%m-%d %H:00:00', {moment})",
}
"""The hour a moment lies in, by dialect."""

PROMPT_TOKENS = "coalesce(o.prompt_tokens, d.prompt_tokens)"
"""The prompt's length: as the engine counted it, as kvroute did (a guess where the view is not exact) until then."""

CACHED_OF = f"nullif(sum(CASE WHEN o.cached_tokens IS NOT NULL THEN {PROMPT_TOKENS} END), 0)"
"""What a hit rate is a part of: prompt tokens of engines that say what they found in their caches."""

_TTFT = "CASE WHEN r.stream THEN o.ttft_ms END"
"""An answer that is not streamed comes as a whole: the moment of its first token is its end."""

_REQUEST = """
      LEFT JOIN requests r
        ON r.created_at = d.created_at AND r.tenant = d.tenant AND r.request_id = d.request_id"""

_SAME_ATTEMPT = """
      ON o.created_at = d.created_at AND o.tenant = d.tenant AND o.request_id = d.request_id
     AND o.attempt = d.attempt"""

DECISION_EXPLAINED = View(
    "v_decision_explained",
    "one row an attempt: what was predicted, what was realised, the chosen slot's cost, and why in one sentence; "
    "`prompt_tokens` is an estimate where `mode` is not exact, `ttft_ms` is known of streamed answers",
    """
    SELECT d.created_at, d.tenant, d.request_id, d.attempt, d.outcome, d.model, d.lora, d.worker_id, d.dp_rank,
           d.route_only, d.deadline_at,
           d.mode, d.reason, d.prompt_tokens, o.prompt_tokens AS engine_prompt_tokens, d.exact_tokens,
           d.block_size, d.total_blocks,
           d.overlap_confirmed, d.overlap_predicted, d.usable_blocks, d.predicted_tokens,
           o.cached_tokens,
           CASE WHEN d.block_size > 0 THEN o.cached_tokens / d.block_size END AS realised_blocks,
           o.cached_tokens - d.predicted_tokens AS token_error,
           c.vision_tokens, c.encoder_tokens,
           c.cost, c.prefill_cost, c.decode_cost, c.request_cost, d.margin, d.ties, d.candidate_count,
           n.worker_id AS next_worker_id, n.cost AS next_cost,
           CASE WHEN o.status IS NULL AND d.route_only THEN 'asked only' ELSE o.status END AS status,
           {ttft} AS ttft_ms, o.total_ms, o.completion_tokens, d.media_count, d.policy,
           CASE
             WHEN d.outcome <> 'routed' THEN d.outcome || ': no slot could take it'
                  || CASE WHEN CAST(d.excluded AS VARCHAR(4000)) = '[]' THEN ''
                          ELSE '; tried before: ' || replace(replace(replace(replace(replace(
                               CAST(d.excluded AS VARCHAR(4000)), '[', ''), ']', ''), '"', ''), ' ', ''), ',', ', ') END
             ELSE d.worker_id || ' holds ' || d.overlap_confirmed || ' of ' || d.total_blocks || ' blocks'
                  || CASE WHEN c.encoder_tokens > 0
                          THEN ' and encoder output of ' || c.encoder_tokens || ' media tokens' ELSE '' END
                  || CASE WHEN c.cost IS NULL THEN '' ELSE ', cost ' || round(CAST(c.cost AS NUMERIC), 2) END
                  || CASE WHEN n.cost IS NULL THEN ', no other candidate'
                          WHEN d.ties > 1 THEN ', drawn among ' || d.ties || ' that cost the same'
                          ELSE ', next ' || n.worker_id || ' at ' || round(CAST(n.cost AS NUMERIC), 2) END
                  || CASE WHEN d.reason IS NULL THEN '' ELSE ', exact up to token ' || d.exact_tokens
                          || ' (' || d.reason || ')' END
           END AS why
      FROM decisions d {request}
      LEFT JOIN outcomes o {same_attempt}
      LEFT JOIN candidates c
        ON c.created_at = d.created_at AND c.tenant = d.tenant AND c.request_id = d.request_id
       AND c.attempt = d.attempt AND c.chosen
      LEFT JOIN candidates n
        ON n.created_at = d.created_at AND n.tenant = d.tenant AND n.request_id = d.request_id
       AND n.attempt = d.attempt AND n.rank = 1
    """,
    "SELECT request_id, worker_id, predicted_tokens, cached_tokens, why FROM v_decision_explained "
    "ORDER BY created_at DESC LIMIT 20",
)

HIT_RATE_HOURLY = View(
    "v_hit_rate_hourly",
    "by hour and model: how many prompt tokens (the engine's count) came out of a cache, and how many were expected to",
    """
    SELECT {hour} AS hour, d.model,
           count(*) AS finished,
           sum({prompt_tokens}) AS prompt_tokens,
           sum(d.predicted_tokens) AS predicted_tokens,
           sum(coalesce(o.cached_tokens, 0)) AS cached_tokens,
           sum(d.predicted_tokens) * 1.0 / nullif(sum({prompt_tokens}), 0) AS predicted_rate,
           sum(o.cached_tokens) * 1.0 / {cached_of} AS hit_rate,
           avg({ttft}) AS mean_ttft_ms
      FROM decisions d {request}
      JOIN outcomes o {same_attempt}
     WHERE o.status = 'finished' AND NOT d.route_only
     GROUP BY {hour}, d.model
    """,
    "SELECT hour, model, finished, hit_rate FROM v_hit_rate_hourly ORDER BY hour DESC",
)

WORKER_SHARE = View(
    "v_worker_share",
    "by hour and model: each worker's share of the attempts, of the prompt tokens, and its hit rate",
    """
    SELECT {hour} AS hour, d.model, d.worker_id,
           count(*) AS attempts,
           count(*) * 1.0 / sum(count(*)) OVER (PARTITION BY {hour}, d.model) AS share,
           sum({prompt_tokens}) AS prompt_tokens,
           sum(d.predicted_tokens) AS predicted_tokens,
           sum(coalesce(o.cached_tokens, 0)) AS cached_tokens,
           sum(CASE WHEN o.status = 'finished' THEN o.cached_tokens END) * 1.0
             / nullif(sum(CASE WHEN o.status = 'finished' AND o.cached_tokens IS NOT NULL THEN {prompt_tokens} END), 0)
             AS hit_rate,
           sum(CASE WHEN o.status = 'finished' THEN 1 ELSE 0 END) AS finished,
           sum(CASE WHEN o.status = 'failed' THEN 1 ELSE 0 END) AS failed,
           avg({ttft}) AS mean_ttft_ms
      FROM decisions d {request}
      LEFT JOIN outcomes o {same_attempt}
     WHERE d.outcome = 'routed' AND NOT d.route_only
     GROUP BY {hour}, d.model, d.worker_id
    """,
    "SELECT hour, worker_id, attempts, share FROM v_worker_share WHERE model = 'qwen3-vl' "
    "ORDER BY hour DESC, share DESC",
)

MEDIA_REUSE = View(
    "v_media_reuse",
    "by media identity: how often it came, when, and to how many workers its requests went",
    """
    SELECT m.identity, m.kind, m.source,
           count(DISTINCT m.tenant || '/' || m.request_id) AS requests,
           count(DISTINCT d.worker_id) AS workers,
           max(m.tokens) AS tokens,
           max(m.host) AS host,
           min(m.created_at) AS first_seen,
           max(m.created_at) AS last_seen
      FROM media m
      LEFT JOIN decisions d
        ON d.created_at = m.created_at AND d.tenant = m.tenant AND d.request_id = m.request_id
       AND d.outcome = 'routed' AND NOT d.route_only
     WHERE m.identity IS NOT NULL
     GROUP BY m.identity, m.kind, m.source
    """,
    "SELECT identity, kind, requests, workers FROM v_media_reuse ORDER BY requests DESC LIMIT 20",
)

MISPREDICTED = View(
    "v_mispredicted",
    "finished attempts whose engine found more or fewer cached tokens than the router predicted",
    """
    SELECT d.created_at, d.tenant, d.request_id, d.attempt, d.model, d.worker_id, d.dp_rank, d.mode, d.reason,
           d.prompt_tokens, d.predicted_tokens, o.cached_tokens,
           o.cached_tokens - d.predicted_tokens AS token_error,
           CASE WHEN o.cached_tokens < d.predicted_tokens THEN 'over' ELSE 'under' END AS predicted,
           CASE WHEN d.overlap_predicted > d.overlap_confirmed THEN 1 ELSE 0 END AS prefix_in_flight,
           o.prompt_tokens AS engine_prompt_tokens
      FROM decisions d
      JOIN outcomes o {same_attempt}
     WHERE o.status = 'finished' AND o.cached_tokens IS NOT NULL AND o.cached_tokens <> d.predicted_tokens
    """,
    "SELECT predicted, count(*), avg(token_error) FROM v_mispredicted GROUP BY predicted",
)

FALLBACKS = View(
    "v_fallbacks",
    "by hour, model and reason: attempts routed by less than their whole prompt, and how much of it was left out",
    """
    SELECT {hour} AS hour, d.model, d.mode, coalesce(d.reason, 'none') AS reason,
           count(*) AS attempts,
           sum({prompt_tokens}) AS prompt_tokens,
           sum(d.exact_tokens) AS exact_tokens,
           min(d.request_id) AS example_request_id
      FROM decisions d
      LEFT JOIN outcomes o {same_attempt}
     WHERE d.mode <> 'exact' OR d.reason IS NOT NULL
     GROUP BY {hour}, d.model, d.mode, coalesce(d.reason, 'none')
    """,
    "SELECT model, reason, sum(attempts) FROM v_fallbacks GROUP BY model, reason ORDER BY 3 DESC",
)

VIEWS = (DECISION_EXPLAINED, HIT_RATE_HOURLY, WORKER_SHARE, MEDIA_REUSE, MISPREDICTED, FALLBACKS)


def create_statements(dialect: str) -> list[str]:
    """CREATE VIEW of every view for ``postgresql`` or ``sqlite``. Raises KeyError for another dialect."""
    parts = {
        "hour": DIALECTS[dialect]("d.created_at"),
        "same_attempt": _SAME_ATTEMPT,
        "request": _REQUEST,
        "ttft": _TTFT,
        "prompt_tokens": PROMPT_TOKENS,
        "cached_of": CACHED_OF,
    }
    return [f"CREATE VIEW {view.name} AS {view.sql.format(**parts)}" for view in VIEWS]


def drop_statements() -> list[str]:
    """DROP VIEW of every view, in an order that holds should one come to use another."""
    return [f"DROP VIEW IF EXISTS {view.name}" for view in reversed(VIEWS)]
