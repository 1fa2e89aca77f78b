"""Which end of a ZMQ endpoint is ours: vLLM's rule for binding and connecting, its ranks, its wildcards. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from services.runtime.errors import ConfigError
from services.worker.engine import EventSource

_PORT = re.compile(r":(\d+)$")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where our socket goes. ``bind``: the engine connects to us."""

    address: str
    bind: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """One rank's events as we reach them."""

    rank: int
    events: Endpoint
    replay: Endpoint | None
    topic: str = ""


def engine_binds(endpoint: str) -> bool:
    """Whether the engine binds this endpoint (else it connects, and we bind): the rule in vLLM's publisher."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def reach(endpoint: str, engine_url: str) -> Endpoint:
    """Our end of an endpoint the engine states: a wildcard is the host we reach the engine's HTTP server by."""
    if not engine_binds(endpoint):
        return Endpoint(endpoint, bind=True)
    return Endpoint(_at_host(endpoint, engine_url))


def reach_replay(endpoint: str, engine_url: str) -> Endpoint:
    """Our end of a replay endpoint: the engine always binds it."""
    return Endpoint(_at_host(endpoint, engine_url))


def sources(
    stated: list[EventSource], engine_url: str, *, events: str | None = None, replay: str | None = None,
    ranks: int | None = None,
) -> list[Source]:
    """One source per rank: what the engine states, or the endpoints from settings, where rank r uses port + r."""
    if events is not None:
        topic = stated[0].topic if stated else ""
        # Where the engine tells no ranks, there is one.
        stated = [EventSource(rank, events, replay, topic) for rank in range(ranks or max(1, len(stated)))]
        offset = True
    else:
        if replay is not None:
            stated = [EventSource(each.rank, each.endpoint, replay, each.topic) for each in stated]
        offset = len({each.endpoint for each in stated}) < len(stated)
    return [
        Source(
            each.rank,
            reach(_for_rank(each.endpoint, each.rank if offset else 0), engine_url),
            None
            if each.replay_endpoint is None
            else reach_replay(_for_rank(each.replay_endpoint, each.rank if offset or replay else 0), engine_url),
            each.topic,
        )
        for each in stated
    ]


def _for_rank(endpoint: str, rank: int) -> str:
    if not rank:
        return endpoint
    if endpoint.startswith("inproc://"):
        return f"{endpoint}_dp{rank}"
    found = _PORT.search(endpoint)
    if found is None:
        raise ConfigError(
            f"KV event endpoint {endpoint} has no port, so rank {rank} has none: give one like tcp://*:5557"
        )
    return f"{endpoint[: found.start()]}:{int(found[1]) + rank}"


def _at_host(endpoint: str, engine_url: str) -> str:
    if not endpoint.startswith("tcp://"):
        return endpoint
    host = urlsplit(engine_url).hostname or "127.0.0.1"
    if ":" in host:
        host = f"[{host}]"
    found = _PORT.search(endpoint)
    stated = endpoint.removeprefix("tcp://")[: -len(found[0])] if found else endpoint.removeprefix("tcp://")
    if stated not in ("*", "[::]", "::", "0.0.0.0"):
        return endpoint
    return f"tcp://{host}{found[0] if found else ''}"
