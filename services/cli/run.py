"""``kvroute run STAGE``: one stage as its own process."""

from __future__ import annotations

from importlib import import_module

import click

from services.cli.session import Session, command_options, examples

STAGES = {
    "gateway": "services.gateway.app",
    "media": "services.media.app",
    "layout": "services.layout.app",
    "router": "services.router.app",
    "audit": "services.audit.app",
    "agent": "services.worker.app",
}
"""Stage and the module whose ``build(settings, service)`` registers it."""


@click.command(
    epilog=examples(
        "kvroute run router",
        "KVROUTE_HEALTH_PORT=8080 kvroute run media --config kvroute.toml",
        "KVROUTE_WORKER_ID=gpu-1 KVROUTE_WORKER_ENGINE_URL=http://gpu-1:8000 kvroute run agent",
    )
)
@click.argument("stage", type=click.Choice(sorted(STAGES)))
@command_options
def run(session: Session, stage: str) -> None:
    """Run one stage until SIGTERM or Ctrl-C: it then finishes what it has, commits and leaves.

    Any number of replicas may run; they share the work. An agent runs beside one engine.
    """
    from services.runtime.event_loop import run_service

    run_service(_serve(session, stage))


async def _serve(session: Session, stage: str) -> None:
    from services.runtime.listening import gateway_place
    from services.runtime.logs import setup_logging
    from services.runtime.service import Service

    settings = session.settings
    if stage == "gateway":
        # Before the broker is asked: the stage itself listens only when it has caught up.
        gateway_place(settings.gateway_host, settings.gateway_port).check()
    setup_logging(settings)
    service = Service(stage, settings)
    import_module(STAGES[stage]).build(settings, service)
    await service.run()
