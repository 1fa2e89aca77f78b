"""The simulated engine as a server: HTTP and ZMQ on free or given ports."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace

import structlog
import zmq
from aiohttp import web
from aiohttp.typedefs import Handler

from services.engine_sim.backend import Backend
from services.engine_sim.config import SimConfig
from services.engine_sim.errors import ApiError, bad_request, internal
from services.engine_sim.ports import free_run
from services.engine_sim.publisher import EventPublisher, EventSource
from services.engine_sim.routes_chat import BACKEND, add_chat_routes, json_response
from services.engine_sim.routes_ops import add_ops_routes
from services.engine_sim.routes_tokens import add_token_routes
from services.engine_sim.scheduler import Sampler
from services.engine_sim.text import Filler
from services.layout.card import ModelCard
from services.layout.layouter import Layouter
from services.layout.tokenise import load_tokenizer
from services.runtime.clock import Clock, SystemClock
from services.runtime.event_loop import run_service

log = structlog.get_logger(__name__)

LAYOUT_CACHE_TOKENS = 4_000_000
PORT_TRIES = 20


class SimEngine:
    """A vLLM-compatible engine without a model. Several run in one process and may share a ``layouter``.

    ``sampler`` decides what is said (default: filler). Raises CardError for an unusable model folder.
    """

    def __init__(
        self,
        config: SimConfig,
        *,
        layouter: Layouter | None = None,
        sampler: Sampler | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self._layouter = layouter or Layouter(
            ModelCard.load(config.model, config.name), cache_tokens=LAYOUT_CACHE_TOKENS
        )
        self._sampler = sampler or Filler(load_tokenizer(self._layouter.card.tokenizer_file), config.seed)
        self._clock = clock or SystemClock()
        self._publishers: list[EventPublisher] = []
        self._backend: Backend | None = None
        self._runner: web.AppRunner | None = None

    @property
    def backend(self) -> Backend:
        """The running engine behind the routes. Raises RuntimeError before start."""
        if self._backend is None:
            raise RuntimeError("the simulated engine is not started")
        return self._backend

    @property
    def http_url(self) -> str:
        """``http://host:port``."""
        return f"http://{_reachable(self.config.host)}:{self.config.http_port}"

    @property
    def events_endpoint(self) -> str:
        """Where rank 0's events are read: ``tcp://host:port``."""
        return self._endpoint(self.backend.publishers[0].source.endpoint)

    @property
    def replay_endpoint(self) -> str:
        """Where rank 0's past events are asked for."""
        return self._endpoint(self.backend.publishers[0].source.replay_endpoint or "")

    @property
    def executed(self) -> dict[str, int]:
        """How often each request id was queued to run."""
        return dict(self.backend.executed)

    async def start(self) -> None:
        """Open the ports and start the ranks. Afterwards ``config`` holds the ports that were chosen.

        Raises OSError or zmq.ZMQError when a given port is taken.
        """
        self._publishers = self._start_publishers()
        try:
            await self._start_serving()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close everything; requests in flight end with a closed connection. May be called twice."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._backend is not None:
            await self._backend.stop()
            self._backend = None
        for publisher in self._publishers:
            await publisher.stop()
        self._publishers = []

    async def __aenter__(self) -> SimEngine:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start_serving(self) -> None:
        self._backend = Backend(self.config, self._layouter, self._publishers, self._sampler, self._clock)
        self._backend.start()
        app = web.Application(middlewares=[_answer_errors], client_max_size=self.config.max_body_bytes)
        app[BACKEND] = self._backend
        for add_routes in (add_chat_routes, add_token_routes, add_ops_routes):
            add_routes(app)
        # A handler is cancelled when its client goes away: that is what aborts a request.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.config.host, self.config.http_port, backlog=1024).start()
        self.config = self._backend.config = replace(self.config, http_port=self._runner.addresses[0][1])

    def _start_publishers(self) -> list[EventPublisher]:
        for attempt in range(PORT_TRIES):
            config = self._with_zmq_port()
            try:
                publishers = _publishers(config)
            except zmq.ZMQError:
                # Somebody else may have taken a port since it was found free.
                if self.config.zmq_port or attempt == PORT_TRIES - 1:
                    raise
                continue
            self.config = config
            return publishers
        raise AssertionError("unreachable")

    def _with_zmq_port(self) -> SimConfig:
        if self.config.zmq_port:
            return self.config
        return replace(self.config, zmq_port=free_run(self.config.host, 2 * self.config.data_parallel_size))

    def _endpoint(self, endpoint: str) -> str:
        return endpoint.replace("*", _reachable(self.config.host), 1)


def _publishers(config: SimConfig) -> list[EventPublisher]:
    started: list[EventPublisher] = []
    ranks = config.data_parallel_size
    host = "*" if config.host == "0.0.0.0" else config.host
    try:
        for rank in range(ranks):
            source = EventSource(
                endpoint=_offset(config.events_endpoint or f"tcp://*:{config.zmq_port}", rank),
                replay_endpoint=_offset(config.replay_endpoint or f"tcp://*:{config.zmq_port + ranks}", rank),
                topic=config.topic,
            )
            publisher = EventPublisher(source, rank, host=host)
            publisher.start()
            started.append(publisher)
    except zmq.ZMQError:
        for publisher in started:
            publisher.close()
        raise
    return started


def _offset(endpoint: str, rank: int) -> str:
    """Rank r uses port + r, as in vLLM."""
    if rank == 0:
        return endpoint
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + rank}"


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "*") else host


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return json_response(error.body(), error.status)
    except web.HTTPRequestEntityTooLarge:
        return json_response(bad_request("the body is too large").body(), 413)
    except web.HTTPException as error:
        return json_response(ApiError(error.status, error.reason, error.reason).body(), error.status)
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception:
        log.exception("simulated engine failed", path=request.path)
        return json_response(internal().body(), 500)


async def serve(config: SimConfig, announce: Callable[[SimEngine], None] = lambda _: None) -> None:
    """Run one engine until SIGINT or SIGTERM; ``announce`` is told when it is up."""
    loop = asyncio.get_running_loop()
    asked_to_stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, asked_to_stop.set)
    async with SimEngine(config) as engine:
        announce(engine)
        await asked_to_stop.wait()


def run(config: SimConfig, announce: Callable[[SimEngine], None] = lambda _: None) -> None:
    """Blocking form of ``serve``, for the command line."""
    run_service(serve(config, announce))
