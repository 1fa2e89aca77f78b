"""``kvroute version``."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import click

from services.cli.session import Session, command_options, examples

LIBRARIES = ("aiokafka", "faststream", "sqlalchemy", "alembic", "pydantic", "tokenizers", "xxhash")


@click.command(epilog=examples("kvroute version", "kvroute version --json"))
@command_options
def version(session: Session) -> None:
    """Show the version of kvroute, of Python and of the libraries that matter in a bug report."""
    found = {"kvroute": own_version(), "python": platform.python_version()}
    found |= {name: _installed(name) for name in LIBRARIES}
    if session.out.json:
        session.out.value(found)
    else:
        session.out.draw(f"kvroute {found['kvroute']}")
        session.out.draw(", ".join(f"{name} {number}" for name, number in found.items() if name != "kvroute"))


def own_version() -> str:
    """Of kvroute itself."""
    return _installed("kvroute")


def _installed(name: str) -> str:
    try:
        return installed(name)
    except PackageNotFoundError:
        return "not installed"
