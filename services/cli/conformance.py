"""``kvroute conformance``: whether a live engine does what kvroute relies on, as a report to attach to a bug."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from services.cli import exits
from services.cli.output import Column
from services.cli.session import Session, command_options, examples

if TYPE_CHECKING:
    from services.worker.conformance.report import Report

RESTART_SECONDS = 900.0
COLUMNS = (
    Column("check", lambda check: check.name),
    Column("outcome", lambda check: check.outcome.value),
    Column("expected", lambda check: check.expected[:160]),
    Column("seen", lambda check: check.seen[:240]),
)


@click.command(
    epilog=examples(
        "kvroute conformance --url http://127.0.0.1:8000 --model-dir ~/models/Qwen2.5-VL-7B-Instruct",
        "kvroute conformance --url http://gpu-1:8000 --model-dir M --events 'tcp://gpu-1:5557' --report vllm.md",
        "kvroute conformance --url http://gpu-1:8000 --model-dir M --restart 'systemctl restart vllm'",
    )
)
@click.option("--engine", type=click.Choice(["vllm"]), default="vllm", show_default=True, help="Kind of engine.")
@click.option("--url", required=True, help="The engine's HTTP server.")
@click.option("--events", help="ZMQ endpoint of its KV events; default: asked from the engine.")
@click.option("--replay", help="ZMQ endpoint of their replay; default: asked from the engine.")
@click.option(
    "--model-dir", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path), help="Model folder."
)
@click.option("--restart", metavar="COMMAND", help="Shell command that restarts the engine; else that is not checked.")
@click.option(
    "--eviction-blocks", default=4096, show_default=True, type=click.IntRange(1),
    help="Largest cache that is filled to see blocks evicted.",
)
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Markdown file to write.")
@command_options
def conformance(session: Session, **options: Any) -> int:
    """Check a live engine: layouts of text, images and videos, identities in KV events, the cache as predicted.

    The engine must be idle, for its cache is watched. Its prefix cache is reset where it offers that. Exit code 1 when
    a check fails; skipped ones say what is missing to run them.
    """
    session.overrides = {
        "worker_engine": options["engine"],
        "worker_engine_url": options["url"],
        "worker_model_dir": options["model_dir"],
        **{f"worker_{name}": options[name] for name in ("events", "replay") if options[name]},
    }
    report = session.run(_check(session, options["restart"], options["eviction_blocks"]))
    if options["report"] is not None:
        from services.worker.conformance.report import markdown

        options["report"].write_text(markdown(report))
    _show(session, report)
    return exits.DONE if report.passed else exits.FAILED


async def _check(session: Session, restart: str | None, eviction_blocks: int) -> Report:
    from services.cli.version import own_version
    from services.worker.conformance.open_bench import facts_of, open_suite, restart_by
    from services.worker.conformance.report import Report
    from services.worker.conformance.suite import Limits

    async with open_suite(session.settings) as suite:
        engine = suite.bench.engine
        suite.limits = Limits(
            eviction_blocks, None if restart is None else partial(restart_by, restart, engine, RESTART_SECONDS)
        )
        report = Report(facts_of(suite, session.settings, own_version()))
        with session.out.working("checking"):
            async for check in suite.run():
                report.checks.append(check)
                await asyncio.sleep(0)
    return report


def _show(session: Session, report: Report) -> None:
    if session.out.json:
        session.out.value({"passed": report.passed, "facts": report.facts, "checks": report.checks})
        return
    title = f"{report.facts['engine']}, {report.facts['model']}, block size {report.facts['block size']}"
    session.out.rows(report.checks, COLUMNS, title=title, empty="nothing was checked")
    session.out.say(report.summary)
