"""``kvroute up`` and ``kvroute demo``: everything on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from services.cli import exits
from services.cli.session import Session, command_options, examples
from services.runtime.logs import setup_logging

if TYPE_CHECKING:
    from services.cli.local_stack import StackPlan

_PLAN_OPTIONS = (
    click.option(
        "--model", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Model folder to serve."
    ),
    click.option("--name", "served_name", help="Name the model is served under; default: the folder's."),
    click.option("--engines", default=3, show_default=True, type=click.IntRange(0), help="Simulated engines; 0: none."),
    click.option("--speedup", default=1.0, show_default=True, help="How much faster than real the engines run."),
    click.option("--block-size", default=16, show_default=True, type=click.IntRange(1), help="Tokens of a KV block."),
    click.option("--num-blocks", default=4096, show_default=True, type=click.IntRange(2), help="KV blocks an engine."),
)


def _plan_options(command: Any) -> Any:
    for option in reversed(_PLAN_OPTIONS):
        command = option(command)
    return command


@click.command(
    "up",
    epilog=examples(
        "kvroute up", "kvroute up --model ~/models/Qwen2.5-VL-7B-Instruct --engines 4", "kvroute up --engines 0"
    ),
)
@_plan_options
@click.option(
    "--kafka-port", default=9092, show_default=True, type=click.IntRange(0, 65535),
    help="Port of the broker on 127.0.0.1; 0: any.",
)  # fmt: skip
@command_options
def up_command(session: Session, **plan: Any) -> None:
    """Run everything on this machine until Ctrl-C: a broker, all stages, simulated engines with their agents.

    The broker is embedded (Apache Kafka where KVROUTE_KAFKA_HOME names its folder), the audit store is SQLite unless
    KVROUTE_DATABASE_URL says otherwise. Nothing is left running afterwards.
    """
    from rich.console import Console

    from services.cli.up import up

    setup_logging(session.settings)
    session.run(up(session.settings, _plan(**plan), Console(file=sys.stderr)))


@click.command("demo", epilog=examples("kvroute demo", "kvroute demo --json"))
@_plan_options
@command_options
def demo_command(session: Session, **plan: Any) -> int:
    """Send text and images through simulated engines and check where they go. Exit code 1: a claim failed."""
    from rich.console import Console

    from services.cli.demo import demo, table_of

    settings = session.settings.model_copy(update={"log_level": "warning"})
    setup_logging(settings)
    rows, claims = session.run(demo(settings, _plan(**plan), Console(file=sys.stderr)))
    if session.out.json:
        held = [{"claim": claim, "holds": holds} for claim, holds in claims.held]
        session.out.value({"requests": rows, "claims": held, "all_hold": claims.all_hold})
    else:
        session.out.draw(table_of(rows))
        for claim, holds in claims.held:
            session.out.draw(f"[{'green]holds' if holds else 'red]FAILS'}[/] {claim}")
        session.out.draw(f"[bold]{claims.closing}[/]")
    return exits.DONE if claims.all_hold else exits.FAILED


def _plan(model: Path | None, kafka_port: int = 0, **options: Any) -> StackPlan:
    from services.cli.local_stack import StackPlan
    from services.cli.shipped import default_model

    folder = default_model(model) if options["engines"] else model
    return StackPlan(model=folder, kafka_port=kafka_port or None, **options)
