"""What was checked on which engine, what was expected and what was seen. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """One check. A skipped one says in ``seen`` why, and how to have it run."""

    name: str
    outcome: Outcome
    expected: str
    seen: str


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one engine. ``facts`` are what a reader must know to repeat them."""

    facts: dict[str, str]
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no check failed; skipped ones don't count."""
        return all(check.outcome is not Outcome.FAILED for check in self.checks)

    @property
    def summary(self) -> str:
        """How many checks ended how."""
        counts = {outcome: sum(check.outcome is outcome for check in self.checks) for outcome in Outcome}
        return ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count) or "nothing was checked"


def markdown(report: Report) -> str:
    """The report as it can be attached to a bug."""
    lines = [f"# Engine conformance: {report.summary}", "", *_table(("fact", "value"), report.facts.items()), ""]
    rows = ((check.name, check.outcome.value, check.expected, check.seen) for check in report.checks)
    return "\n".join([*lines, *_table(("check", "outcome", "expected", "seen"), rows), ""])


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [_row(heads), _row(("---",) * len(heads)), *(_row(row) for row in rows)]


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
