"""What a command prints: tables on a terminal, JSON with --json or in a pipe, never colour in a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

import orjson

from services.cli.tables import Column, Dull, fitted, shown

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["Column", "Dull", "Output", "counted", "percent", "plain", "shown"]

PLAIN_WIDTH = 160


class Output:
    """Standard output of a command. ``json`` None: by whether standard output is a terminal."""

    def __init__(self, json: bool | None = None) -> None:
        self.json = not sys.stdout.isatty() if json is None else json

    @property
    def console(self) -> Console:
        """Rich's console on standard output; without colour unless that is a terminal."""
        from rich.console import Console

        return Console(file=sys.stdout, width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)

    @property
    def messages(self) -> Console:
        """Rich's console on standard error, for progress and remarks."""
        from rich.console import Console

        return Console(file=sys.stderr, highlight=False)

    def rows(self, rows: Sequence[Any], columns: Iterable[Column], *, title: str, empty: str) -> None:
        """Print rows: a JSON array of all their fields, or a table of ``columns``. ``empty`` is said of no rows."""
        if self.json:
            self.value(rows)
            return
        if not rows:
            self.say(empty)
            return
        console = self.console
        console.print(fitted(rows, list(columns), console.width, title=title))

    def value(self, value: Any) -> None:
        """Print a value as JSON."""
        raw = orjson.dumps(plain(value), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
        sys.stdout.write(raw.decode() + "\n")
        sys.stdout.flush()

    def draw(self, *renderables: RenderableType) -> None:
        """Print what rich can draw."""
        console = self.console
        for renderable in renderables:
            console.print(renderable)

    def say(self, text: str) -> None:
        """A remark for people, on standard error."""
        self.messages.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Show that something takes a while: on standard error, and only when that is a terminal."""
        if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            yield
            return
        with self.messages.status(what):
            yield


def percent(value: float | None) -> str:
    """A rate of 0 to 1 as percent."""
    return "" if value is None else f"{100 * float(value):.1f} %"


def counted(count: object, thing: str) -> str:
    """A number of things: ``1 block``, ``2 blocks``."""
    return f"{shown(count)} {thing}" if count == 1 else f"{shown(count)} {thing}s"


def plain(value: Any) -> Any:
    """The value as JSON knows it: dataclasses as objects, moments as ISO text in UTC, enums as their values."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)
