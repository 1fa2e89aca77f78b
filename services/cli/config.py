"""``kvroute config``: the settings in force."""

from __future__ import annotations

import click

from services.cli.output import Column
from services.cli.session import Session, command_options, examples
from services.runtime.configuration import env_name


@click.command(
    epilog=examples("kvroute config", "kvroute config --config kvroute.toml --changed", "kvroute config --json")
)
@click.option("--changed", is_flag=True, help="Only those that are not at their default.")
@command_options
def config(session: Session, changed: bool) -> None:
    """Show every setting, its value and where that came from. Secrets are hidden. Meanings: docs/configuration.md."""
    rows = [
        {"setting": name, "value": value, "origin": origin, "variable": env_name(name)}
        for name, value, origin in session.loaded.rows()
        if not changed or origin != "default"
    ]
    session.out.rows(
        rows,
        [
            Column("setting", lambda row: row["setting"], whole=True),
            Column("value", lambda row: row["value"]),
            Column("from", lambda row: row["origin"]),
            Column("environment", lambda row: row["variable"], rank=1, whole=True),
        ],
        title="Settings",
        empty="every setting is at its default",
    )
    for name in session.loaded.unknown:
        session.out.say(f"{name} in the environment is no setting of kvroute")
