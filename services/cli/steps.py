"""How a long start tells where it is."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


def say_step(console: Console, step: str) -> None:
    """One step on a line of its own, as it is: rich would paint the digits in models' names."""
    console.print(Text(step, style="dim"), soft_wrap=True)
