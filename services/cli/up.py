"""``kvroute up``: all of kvroute on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from services.audit.database import database_url, describe
from services.cli.local_stack import LocalStack, StackPlan
from services.runtime.settings import Settings


async def up(settings: Settings, plan: StackPlan, console: Console) -> None:
    """Start everything, say where it is, and run until SIGINT or SIGTERM. Raises KvrouteError when a part gives up."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.set)
    stack = LocalStack(settings, plan, say=lambda part: console.print(f"[dim]starting[/] {part}"))
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
        starting.cancel()
        await asyncio.gather(starting, stop, return_exceptions=True)
        console.print("[dim]stopping[/]")
        await stack.stop()


def _say_where(stack: LocalStack, console: Console) -> None:
    settings = stack.settings
    store = database_url(settings)
    rows: Mapping[str, Any] = {
        "gateway": f"{stack.gateway_url}/v1/chat/completions",
        "Kafka": settings.kafka_bootstrap,
        "audit": store.database if store.get_backend_name() == "sqlite" else describe(store),
        "models": ", ".join(settings.models) or "none",
        "commands": "in another terminal: "
        f"export KVROUTE_KAFKA_BOOTSTRAP={settings.kafka_bootstrap} KVROUTE_KAFKA_PROFILE={settings.kafka_profile}",
        "workers": ", ".join(f"{name} ({engine.http_url})" for name, engine in stack.engines.items()) or "none yet",
    }
    console.print("[bold green]kvroute is up[/]  (Ctrl-C stops it)")
    for name, value in rows.items():
        console.print(f"  {name:<8} {value}", soft_wrap=True, highlight=False)
