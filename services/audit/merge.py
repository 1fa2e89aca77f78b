"""How facts about one thing become one row, whatever order they come in and however often.

Each column has a rule: keep the smallest, keep the largest, or follow the row that *leads* (the end of an attempt that
outranks the others; the newest registration). The rules stand here once and are applied twice: ``fold`` does a
batch before it is written, ``upserts.py`` is the same in SQL, for the row that
is already there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from schemas.lifecycle import LifecycleEvent
from schemas.worker import WorkerState

Row = dict[str, Any]


class Rule(Enum):
    """What becomes of a column when two rows of the same key meet. None always gives way."""

    SMALLEST = "smallest"
    LARGEST = "largest"
    LEADING = "leading"


@dataclass(frozen=True, slots=True)
class Lead:
    """One criterion of which row leads. ``ranks`` orders words; without it the values order themselves."""

    column: str
    highest: bool
    ranks: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Merging:
    """The rules of one table. ``leads`` decides by its first criterion that differs."""

    table: str
    key: tuple[str, ...]
    smallest: frozenset[str] = frozenset()
    largest: frozenset[str] = frozenset()
    leading: frozenset[str] = frozenset()
    leads: tuple[Lead, ...] = field(default=())

    def rule(self, column: str) -> Rule:
        """The rule of a column. Raises KeyError for a column without one."""
        for rule, columns in (
            (Rule.SMALLEST, self.smallest),
            (Rule.LARGEST, self.largest),
            (Rule.LEADING, self.leading),
        ):
            if column in columns:
                return rule
        raise KeyError(f"{self.table}.{column} has no merge rule")


REQUESTS = Merging(
    "requests",
    key=("created_at", "tenant", "request_id"),
    smallest=frozenset({"accepted_at"}),
    largest=frozenset({"model", "lora", "session_id", "priority", "stream", "route_only", "deadline_at", "attempts"}),
)

ENDINGS: dict[str, int] = {
    LifecycleEvent.REFUSED: 1,
    LifecycleEvent.CANCELLED: 2,
    LifecycleEvent.FAILED: 3,
    LifecycleEvent.FINISHED: 4,
}
"""Which end counts when several are stated: a cancel that came too late does not undo a finished answer."""

OUTCOMES = Merging(
    "outcomes",
    key=("created_at", "tenant", "request_id", "attempt"),
    smallest=frozenset({"accepted_at", "first_token_at", "ttft_ms"}),
    largest=frozenset({"worker_id", "dp_rank", "epoch", "prompt_tokens", "completion_tokens", "cached_tokens"}),
    leading=frozenset(
        {
            "status",
            "stage",
            "ended_at",
            "total_ms",
            "http_status",
            "code",
            "detail",
            "before_output",
            "retryable",
            "timings",
        }
    ),
    leads=(Lead("status", True, ENDINGS), Lead("ended_at", False), Lead("stage", False)),
)

STATES: dict[str, int] = {WorkerState.LIVE: 1, WorkerState.DRAINING: 2, WorkerState.RETIRED: 3}

WORKERS = Merging(
    "workers",
    key=("created_at", "worker_id", "epoch"),
    leading=frozenset(
        {
            "updated_at",
            "state",
            "dp_size",
            "engine",
            "engine_version",
            "model",
            "loras",
            "block_size",
            "max_concurrency",
            "max_model_len",
            "num_blocks",
            "agent",
        }
    ),
    leads=(Lead("updated_at", True), Lead("state", True, STATES)),
)

CONTRACTS = Merging(
    "contracts",
    key=("created_at", "worker_id", "epoch", "modality"),
    leading=frozenset({"updated_at", "model", "proven", "variant", "verbatim_identity", "max_pixels", "detail"}),
    leads=(Lead("updated_at", True),),
)


def leads_over(merging: Merging, challenger: Row, holder: Row) -> bool:
    """Whether the challenger's leading columns replace the holder's. A full tie does not."""
    for lead in merging.leads:
        new, old = challenger.get(lead.column), holder.get(lead.column)
        if lead.ranks is not None:
            new, old = lead.ranks.get(new or "", 0), lead.ranks.get(old or "", 0)
        if new == old:
            continue
        if new is None or old is None:
            return old is None
        return bool(new > old) is lead.highest
    return False


def merged(merging: Merging, first: Row, second: Row) -> Row:
    """The row two rows of the same key make."""
    leader = second if leads_over(merging, second, first) else first
    row = dict(first)
    for column in row.keys() - set(merging.key):
        rule, one, other = merging.rule(column), first[column], second[column]
        if rule is Rule.LEADING:
            row[column] = leader[column]
        elif one is None or other is None:
            row[column] = other if one is None else one
        else:
            row[column] = min(one, other) if rule is Rule.SMALLEST else max(one, other)
    return row


def fold(merging: Merging, rows: Iterable[Row]) -> list[Row]:
    """One row a key, sorted by key so that two writers take their locks in the same order."""
    folded: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row[column] for column in merging.key)
        folded[key] = merged(merging, folded[key], row) if key in folded else row
    return [folded[key] for key in sorted(folded)]
