"""Benchmark results for people (tables) and for machines (JSON)."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Row

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 1),
    }


def markdown(title: str, rows: Sequence[Row]) -> str:
    """The rows as a Markdown table under a heading."""
    lines = [f"### {title}", "", "| case | median | range | unit | baseline | ratio |", "|---|---|---|---|---|---|"]
    for row in rows:
        spread = f"{number(row.value.low)} to {number(row.value.high)}" if row.value.runs > 1 else ""
        baseline = f"{number(row.baseline.median)} ({row.baseline_name})" if row.baseline else ""
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else ""
        lines.append(f"| {row.case} | {number(row.value.median)} | {spread} | {row.unit} | {baseline} | {ratio} |")
    return "\n".join(lines)


def into_page(page: str, sections: Sequence[str], about: Mapping[str, object]) -> str:
    """A page with the text between its bench markers replaced. Raises ValueError when it has no markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    measured_on = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in about.items())
    return "\n\n".join([before + begin, f"Measured on: {measured_on}.", *sections, end + after])


def table(title: str, rows: Sequence[Row]) -> Table:
    """The rows as a table: median, the range of the runs, the baseline and the ratio."""
    result = Table(title=title, title_justify="left", title_style="bold")
    for column in ("case", "median", "low", "high", "unit", "baseline", "ratio", "baseline is"):
        result.add_column(column, justify="left" if column in {"case", "unit", "baseline is"} else "right")
    for row in rows:
        result.add_row(
            row.case,
            number(row.value.median),
            number(row.value.low),
            number(row.value.high),
            row.unit,
            number(row.baseline.median) if row.baseline else "",
            f"{row.ratio:.2f}" if row.ratio is not None else "",
            row.baseline_name,
        )
    return result


def number(value: float) -> str:
    """Three significant digits, thousands apart."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def console(json_only: bool) -> Console:
    """Where tables go; nowhere when only JSON is asked for."""
    return Console(quiet=json_only, width=None if os.isatty(1) else 160)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
