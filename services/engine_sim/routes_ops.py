"""Health, models, metrics, event sources, cache reset; and ``/sim/*``, which no real engine has."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from services.engine_sim.errors import bad_request
from services.engine_sim.exposition import exposition
from services.engine_sim.routes_chat import BACKEND, json_response, read_body


def add_ops_routes(app: web.Application) -> None:
    """Register the routes."""
    app.router.add_get("/health", health)
    app.router.add_get("/version", version)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/kv_event_sources", kv_event_sources)
    app.router.add_post("/reset_prefix_cache", reset_prefix_cache)
    app.router.add_get("/sim/requests", executed_requests)
    app.router.add_post("/sim/skip_batches", skip_batches)


async def health(request: web.Request) -> web.Response:
    """An empty 200 while the engine runs."""
    return web.Response()


async def version(request: web.Request) -> web.Response:
    """The vLLM version whose behaviour is simulated."""
    return json_response({"version": request.app[BACKEND].config.version})


async def models(request: web.Request) -> web.Response:
    """The model and its adapters."""
    backend = request.app[BACKEND]
    created = backend.clock.now_ms() // 1000

    def card(name: str, root: str, parent: str | None, length: int | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": length,
            "permission": [],
        }

    base = backend.config.name
    cards = [card(base, str(backend.config.model), None, backend.max_model_len)]
    cards += [card(lora, lora, base, None) for lora in backend.config.loras]
    return json_response({"object": "list", "data": cards})


async def metrics(request: web.Request) -> web.Response:
    """Prometheus text."""
    backend = request.app[BACKEND]
    cache = backend.expander.processor_cache
    text = exposition(backend.config.name, backend.states(), cache.queries, cache.hits, backend.started_at)
    return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def kv_event_sources(request: web.Request) -> web.Response:
    """Where each rank publishes, by rank."""
    publishers = request.app[BACKEND].publishers
    return json_response({str(publisher.rank): publisher.source.as_dict() for publisher in publishers})


async def reset_prefix_cache(request: web.Request) -> web.Response:
    """Forget cached blocks; ``success`` is false while some are held."""
    return json_response({"success": request.app[BACKEND].reset_prefix_cache()})


async def executed_requests(request: web.Request) -> web.Response:
    """How often each X-Request-Id was queued to run."""
    executed = request.app[BACKEND].executed
    return json_response({"requests": dict(executed), "total": sum(executed.values())})


async def skip_batches(request: web.Request) -> web.Response:
    """Lose the next event batches of a rank, as a broken network would: ``{"batches": n, "rank": 0}``."""
    body, _ = await read_body(request)
    batches, rank = body.get("batches", 1), body.get("rank", 0)
    publishers = request.app[BACKEND].publishers
    if not isinstance(batches, int) or not isinstance(rank, int) or not 0 <= rank < len(publishers):
        raise bad_request(f"expected batches and a rank below {len(publishers)}, found {body}"[:200])
    publishers[rank].skip(batches)
    return json_response({"success": True})
