"""``python -m benchmarks [SUITE ...]``: tables on the terminal, all numbers in out/bench.json."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import click

from benchmarks import hashing, index, layout, media, media_stage, pipeline
from benchmarks.measure import Row
from benchmarks.report import console, into_page, machine, markdown, table

SUITES: dict[str, tuple[str, Callable[[], Iterable[Row]]]] = {
    "hashing": ("Hashing prompts into block addresses (block size 16)", hashing.rows),
    "index": ("Router index", index.rows),
    "layout": ("Token layouts", layout.rows),
    "media": ("Content identities", media.rows),
    "media-stage": ("The media stage", media_stage.rows),
    "pipeline": ("The pipeline, 4 simulated engines that take no time", pipeline.rows),
    "quick": ("The pipeline, few requests: whether it runs, not how fast", partial(pipeline.rows, pipeline.QUICK)),
}
BUSY = 0.5
"""Load average above which numbers are not to be written down."""
DEFAULT = ("hashing", "index", "layout", "media", "media-stage", "pipeline")


@click.command()
@click.argument("suites", nargs=-1, type=click.Choice(list(SUITES)))
@click.option("--json", "json_only", is_flag=True, help="JSON on stdout, no tables.")
@click.option("--page", type=click.Path(exists=True, path_type=Path), help="Also write tables into this Markdown page.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/bench.json"), show_default=True)
def main(suites: tuple[str, ...], json_only: bool, page: Path | None, out: Path) -> None:
    """Run benchmark SUITES; all but quick by default."""
    # Asked to end, it ends as with Ctrl-C: the fleet's processes are stopped, none is left behind.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    screen = console(json_only)
    about = machine()
    results: dict[str, object] = {"machine": about}
    sections: list[str] = []
    if os.getloadavg()[0] > BUSY:
        screen.print(f"[yellow]The load is {os.getloadavg()[0]:.1f}: on a busy machine only ratios say something.[/]")
    for name in suites or DEFAULT:
        title, rows = SUITES[name]
        measured = list(rows())
        screen.print(table(title, measured))
        results[name] = [row.as_data() for row in measured]
        sections.append(markdown(title, measured))
    text = json.dumps(results, indent=2)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text + "\n", "utf-8")
    if page is not None:
        page.write_text(into_page(page.read_text("utf-8"), sections, about), "utf-8")
    sys.stdout.write((text if json_only else json.dumps(results)) + "\n")
    screen.print(f"also in {out}")


if __name__ == "__main__":
    main()
