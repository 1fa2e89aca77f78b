"""``kvroute up``: all of kvroute on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console

from services.audit.database import database_url, describe
from services.cli.local_stack import LocalStack, StackPlan
from services.cli.steps import say_step
from services.runtime.configuration import env_name
from services.runtime.settings import Settings


async def up(settings: Settings, plan: StackPlan, console: Console) -> None:
    """Start everything, say where it is, and run until SIGINT or SIGTERM. Raises KvrouteError when a part gives up."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.set)
    stack = LocalStack(settings, plan, say=partial(say_step, console))
    for place in stack.places():
        place.check()
    starting = asyncio.ensure_future(stack.start())
    stop = asyncio.ensure_future(asked.wait())
    try:
        await asyncio.wait((starting, stop), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return
        await starting
        _say_where(stack, console)
        failed = asyncio.ensure_future(stack.wait_failed())
        await asyncio.wait((failed, stop), return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            await failed
        failed.cancel()
    finally:
        stop.cancel()
        if not starting.done():
            # What half of the parts say of the other half's going is no news to who has just stopped them.
            logging.disable(logging.CRITICAL)
        starting.cancel()
        await asyncio.gather(starting, stop, return_exceptions=True)
        say_step(console, "stopping")
        await stack.stop()


def _say_where(stack: LocalStack, console: Console) -> None:
    settings = stack.settings
    store = database_url(settings)
    rows: Mapping[str, Any] = {
        "gateway": f"{stack.gateway_url}/v1/chat/completions",
        "Kafka": settings.kafka_bootstrap,
        "audit": store.database if store.get_backend_name() == "sqlite" else describe(store),
        "models": ", ".join(settings.models) or "none",
        "workers": ", ".join(f"{name} ({engine.http_url})" for name, engine in stack.engines.items()) or "none yet",
    }
    console.print("[bold green]kvroute is up[/]  (Ctrl-C stops it)", highlight=False)
    for name, value in rows.items():
        console.print(f"  {name:<8} {value}", soft_wrap=True, highlight=False, markup=False)
    console.print("  commands in another terminal:", highlight=False)
    for line in commands_hint(settings, activate=activation(sys.prefix, sys.base_prefix, Path.cwd())):
        console.print(f"    {line}", soft_wrap=True, highlight=False, markup=False)


def activation(prefix: str, base_prefix: str, here: Path) -> str | None:
    """What puts `kvroute` on the path, None where it needs nothing: this Python is no virtual environment's."""
    script = Path(prefix) / "bin" / "activate"
    if prefix == base_prefix or not script.is_file():
        return None
    return f". {script.relative_to(here) if script.is_relative_to(here) else script}"


def commands_hint(settings: Settings, activate: str | None) -> list[str]:
    """What another terminal needs so that commands find this pipeline: what differs from the defaults."""
    default = Settings()
    exports = {
        "KVROUTE_KAFKA_BOOTSTRAP": settings.kafka_bootstrap,
        "KVROUTE_KAFKA_PROFILE": settings.kafka_profile,
    }
    for name in ("gateway_host", "gateway_port"):
        if getattr(settings, name) != getattr(default, name):
            exports[env_name(name)] = str(getattr(settings, name))
    if settings.database_url is None and settings.data_dir != default.data_dir:
        exports["KVROUTE_DATA_DIR"] = str(settings.data_dir.absolute())
    line = "export " + " ".join(f"{name}={quote(value)}" for name, value in exports.items())
    return [activate, line] if activate else [line]
