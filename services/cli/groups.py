"""Groups of commands that say what a mistyped one may have been meant to be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import click

ELSEWHERE = {
    "list": "worker list", "drain": "worker drain", "retire": "worker retire", "workers": "audit workers",
    "recent": "audit recent", "fallbacks": "audit fallbacks", "upgrade": "db upgrade", "migrate": "db upgrade",
    "redrive": "dlq redrive", "start": "up", "why": "explain", "ask": "send", "chat": "send",
    "models": "audit models", "settings": "config",
}  # fmt: skip
"""Words people try, and the commands they look for."""


def meant(word: str, known: Iterable[str]) -> str | None:
    """The command a mistyped one is closest to, if to any."""
    found = get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return found[0] if found else None


class SuggestingGroup(click.Group):
    """A group whose error for an unknown command has a suggestion."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. Raises click.UsageError naming the one that may have been meant."""
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-"):
            raise click.UsageError(f"No such command {word!r}.{self._hint(ctx, word)}", ctx)
        return super().resolve_command(ctx, args)

    def _hint(self, ctx: click.Context, word: str) -> str:
        command = meant(word, self.list_commands(ctx))
        if command is not None:
            return f" Did you mean `{ctx.command_path} {command}`?"
        if ctx.parent is None and word in ELSEWHERE:
            return f" Did you mean `{ctx.command_path} {ELSEWHERE[word]}`?"
        return f" There are: {_listed(self.list_commands(ctx))}."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
