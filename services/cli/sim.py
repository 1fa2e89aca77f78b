"""``kvroute sim``: a simulated engine that looks like vLLM from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from services.cli.session import Session, command_options, examples

if TYPE_CHECKING:
    from services.engine_sim.server import SimEngine


def _objects(context: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(value or "{}")
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(options, dict) for options in found.values()):
        raise click.BadParameter("expected an object of objects, such as {\"video\": {\"fps\": 1}}")
    return found


@click.command(
    epilog=examples(
        "kvroute sim --model ~/models/Qwen2.5-VL-7B-Instruct --port 8100",
        "kvroute sim --model tests/models/qwen2.5-vl --speedup 100 --num-blocks 512",
        "kvroute sim --model M --host 0.0.0.0 --events 'tcp://*:5557' --replay 'tcp://*:5558'",
    )
)
@click.option(
    "--model", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path), help="Model folder."
)
@click.option("--name", "served_name", help="Name it is served under; default: the folder's.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", "http_port", default=8100, show_default=True, type=click.IntRange(0, 65_535), help="0: a free one."
)
@click.option(
    "--events", "events_endpoint", help="ZMQ endpoint of KV events, such as tcp://*:5557; default: a free port."
)
@click.option("--replay", "replay_endpoint", help="ZMQ endpoint of the replay; default: a free port.")
@click.option("--block-size", default=16, show_default=True, type=click.IntRange(1), help="Tokens of a KV block.")
@click.option("--num-blocks", default=4096, show_default=True, type=click.IntRange(2), help="KV blocks a rank.")
@click.option("--data-parallel-size", default=1, show_default=True, type=click.IntRange(1), help="Ranks.")
@click.option(
    "--speedup", default=1.0, show_default=True, help="How much faster than a real engine; 0.5: half as fast."
)
@click.option("--seed", default=0, show_default=True, help="Of the answers.")
@click.option(
    "--max-num-seqs", default=256, show_default=True, type=click.IntRange(1), help="Requests running at once."
)
@click.option(
    "--max-num-batched-tokens", default=8192, show_default=True, type=click.IntRange(1), help="Tokens a step."
)
@click.option(
    "--encoder-cache-tokens",
    type=click.IntRange(0),
    help="Media tokens whose encoder outputs are kept; default: a step's tokens.",
)
@click.option("--max-model-len", type=click.IntRange(1), help="Longest prompt and answer; default: the model's.")
@click.option(
    "--output-tokens", default=32, show_default=True, type=click.IntRange(1), help="Of an answer without limit."
)
@click.option(
    "--trust-request-mm-kwargs", is_flag=True, help="Take media_io_kwargs and mm_processor_kwargs of requests."
)
@click.option("--media-io-kwargs", callback=_objects, help="JSON, as vLLM's: how media are read, by their kind.")
@click.option("--version", default="0.32.0", show_default=True, help="vLLM whose events it speaks, from 0.24 on.")
@click.option("--lora", "loras", multiple=True, help="Name of a LoRA adapter it serves; may be repeated.")
@command_options
def sim(session: Session, **options: Any) -> None:
    """Run a simulated engine until Ctrl-C: vLLM's HTTP API and KV events, a real block pool, no GPU and no weights."""
    from zmq import ZMQError

    from services.engine_sim.config import SimConfig
    from services.engine_sim.server import run
    from services.runtime.errors import ConfigError
    from services.runtime.listening import Listening
    from services.runtime.logs import setup_logging

    setup_logging(session.settings)
    try:
        config = SimConfig(**options)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    Listening("the simulated engine", config.host, config.http_port, "choose a free port with --port; 0: any").check()
    try:
        run(config, lambda engine: _announce(session, engine))
    except ZMQError as error:
        places = " and ".join(filter(None, (config.events_endpoint, config.replay_endpoint)))
        raise ConfigError(
            f"the simulated engine can't publish events at {places or 'a port of its own'} ({error}): "
            "choose free ones with --events and --replay"
        ) from None


def _announce(session: Session, engine: SimEngine) -> None:
    places = {"http": engine.http_url, "events": engine.events_endpoint, "replay": engine.replay_endpoint}
    if session.out.json:
        session.out.value(places)
    else:
        session.out.draw(
            "simulated engine is up (Ctrl-C stops it)", *(f"  {name:<7} {at}" for name, at in places.items())
        )
