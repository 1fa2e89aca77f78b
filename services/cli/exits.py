"""Exit codes, once: what a script may rely on."""

from __future__ import annotations

from services.runtime.errors import ConfigError, KvrouteError, Transient

DONE = 0
FAILED = 1
USAGE = 2
AWAY = 3
INTERRUPTED = 130

MEANINGS = {
    DONE: "done",
    FAILED: "failed: refused, unknown, or a check did not hold",
    USAGE: "wrong usage or configuration",
    AWAY: "something needed is away (broker, database, gateway): try again later",
    INTERRUPTED: "interrupted",
}


class Away(Transient):
    """A server the command needs does not answer. The message names it and how to start or find it."""


def code_of(error: KvrouteError) -> int:
    """The exit code an error ends a command with."""
    if isinstance(error, ConfigError):
        return USAGE
    return AWAY if isinstance(error, Transient) else FAILED
