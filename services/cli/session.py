"""What every command gets: the settings in force, where to print, and the ways to the outside.

``Wiring`` names those ways; tests replace them with fakes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from services.cli.output import Output

if TYPE_CHECKING:
    from services.cli.broker import Broker
    from services.cli.gateway_client import GatewayClient
    from services.runtime.configuration import LoadedSettings
    from services.runtime.settings import Settings

Result = TypeVar("Result")


def _open_broker(settings: Settings) -> Broker:
    from services.cli.broker import KafkaBroker

    return KafkaBroker(settings)


def _open_gateway(url: str, api_key: str | None) -> GatewayClient:
    from services.cli.gateway_client import HttpGateway

    return HttpGateway(url, api_key)


def _now_ms() -> int:
    from services.runtime.clock import SystemClock

    return SystemClock().now_ms()


@dataclass(frozen=True, slots=True)
class Wiring:
    """The ways to the outside. ``click``'s context object: ``cli.main(args, obj=Wiring(...))``."""

    broker: Callable[[Settings], Broker] = _open_broker
    gateway: Callable[[str, str | None], GatewayClient] = _open_gateway
    now_ms: Callable[[], int] = _now_ms


@dataclass
class Session:
    """One run of one command."""

    config: Path | None = None
    json: bool | None = None
    wiring: Wiring = field(default_factory=Wiring)
    overrides: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def out(self) -> Output:
        """Where to print."""
        return Output(self.json)

    @cached_property
    def loaded(self) -> LoadedSettings:
        """The settings and where each came from. Raises ConfigError."""
        from services.runtime.configuration import load_settings

        return load_settings(os.environ, self.config, self.overrides)

    @property
    def settings(self) -> Settings:
        """The settings in force. Raises ConfigError."""
        return self.loaded.settings

    def broker(self) -> Broker:
        """A connection to Kafka, to be entered."""
        return self.wiring.broker(self.settings)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end."""
        return asyncio.run(work)


_SHARED_OPTIONS = (
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="TOML file with settings; default: KVROUTE_CONFIG. The environment (KVROUTE_*) goes over it.",
    ),
    click.option("--json/--table", "json", default=None, help="JSON or a table; default: JSON unless on a terminal."),
)


def command_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options all commands share. The command gets a ``Session`` as its first argument."""

    def with_session(context: click.Context, config: Path | None, json: bool | None, **arguments: Any) -> Any:
        wiring = context.find_object(Wiring) or Wiring()
        return command(Session(config=config, json=json, wiring=wiring), **arguments)

    decorated: Any = click.pass_context(update_wrapper(cast("Any", with_session), command))
    for option in reversed(_SHARED_OPTIONS):
        decorated = option(decorated)
    return cast("Callable[..., Any]", decorated)


def examples(*lines: str) -> str:
    """The end of a command's help: commands to copy."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
