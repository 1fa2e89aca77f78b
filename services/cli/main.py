"""The command ``kvroute``. Commands are imported when they are used, so that --help and completion stay quick."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from services.cli import exits
from services.cli.groups import SuggestingGroup
from services.cli.session import examples
from services.runtime.errors import KvrouteError


@dataclass(frozen=True, slots=True)
class Entry:
    """A command that is imported when it is asked for."""

    module: str
    attribute: str
    short_help: str


COMMANDS = {
    "up": Entry("services.cli.local", "up_command", "Run everything on this machine: broker, stages, engines."),
    "demo": Entry("services.cli.local", "demo_command", "Show in a minute that images go where they are cached."),
    "run": Entry("services.cli.run", "run", "Run one stage."),
    "send": Entry("services.cli.send", "send", "Send a chat request and say where it went."),
    "route": Entry("services.cli.route", "route", "Ask where a request would go, without running it."),
    "audit": Entry("services.cli.audit", "audit", "Look at past decisions."),
    "explain": Entry("services.cli.explain", "explain", "Say why a request went where it went."),
    "inspect": Entry("services.cli.inspect", "inspect", "Show what the router sees in an image or a video."),
    "topics": Entry("services.cli.topics", "topics", "Create and list topics."),
    "db": Entry("services.cli.db", "db", "Migrate the audit store."),
    "dlq": Entry("services.cli.dlq", "dlq", "Look at dead letters and send them again."),
    "worker": Entry("services.cli.worker", "worker", "List, drain and retire workers."),
    "sim": Entry("services.cli.sim", "sim", "Run a simulated engine."),
    "conformance": Entry(
        "services.cli.conformance", "conformance", "Check that a live engine does what kvroute relies on."
    ),
    "config": Entry("services.cli.config", "config", "Show the settings in force and where each came from."),
    "version": Entry("services.cli.version", "version", "Show versions."),
}

EPILOG = (
    examples(
        "kvroute up",
        'kvroute send "What is in this picture?" --image photo.jpg',
        "kvroute explain REQUEST_ID",
        "kvroute audit recent --since 1h",
    )
    + "\n\n\b\nExit codes:\n"
    + "\n".join(f"  {code:<4} {meaning}" for code, meaning in exits.MEANINGS.items())
)


class LazyGroup(SuggestingGroup):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. None when there is none of this name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(entry.module), entry.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands in --help, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short_help) for name, entry in COMMANDS.items()])


@click.group(
    cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
def cli() -> None:
    """Route chat requests to the worker whose KV cache already holds the prompt, images and videos included.

    Settings come from the environment (KVROUTE_*) over a TOML file (--config, KVROUTE_CONFIG) over defaults:
    `kvroute config` shows them.
    """


_SILENCE = logging.NullHandler()


def run(arguments: Sequence[str] | None = None, obj: Any = None) -> int:
    """Run a command line. Returns the exit code; errors are said in one line on standard error."""
    # Until a command sets logging up, libraries are silent: what they would say, our errors say in one line.
    logging.getLogger().addHandler(_SILENCE)
    try:
        outcome = cli.main(arguments, prog_name="kvroute", obj=obj, standalone_mode=False)
    except KvrouteError as error:
        _complain(str(error))
        return exits.code_of(error)
    except click.exceptions.Abort:
        return exits.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has seen enough.
        sys.stderr.close()
        return exits.DONE
    return outcome if isinstance(outcome, int) else exits.DONE


def _complain(text: str) -> None:
    sys.stderr.write("kvroute: " + " ".join(text.split()) + "\n")


def main() -> None:
    """The entry point ``kvroute``."""
    sys.exit(run())


if __name__ == "__main__":
    main()
