"""What the tests of the simulated engine build again and again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.engine_sim.events import BlockRemoved, BlockStored, KvEvent
from services.engine_sim.hashing import BlockHasher
from services.engine_sim.kv_cache import KvCache
from services.engine_sim.request import EngineRequest, MediaSpan
from services.engine_sim.scheduler import Output, Scheduler

BLOCK = 4


def prompt(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


def request(
    token_ids: Sequence[int], request_id: str = "r", *, max_tokens: int = 1, media: Sequence[MediaSpan] = ()
) -> EngineRequest:
    return EngineRequest(request_id, list(token_ids), max_tokens, media)


def cache(num_blocks: int = 100, block_size: int = BLOCK) -> KvCache:
    return KvCache(num_blocks, BlockHasher(block_size))


def scheduler(
    num_blocks: int = 100, *, budget: int = 8192, seqs: int = 256, block_size: int = BLOCK, encoder: int | None = None
) -> Scheduler:
    """Samples the number of the token: 9000, 9001, …"""
    return Scheduler(
        cache(num_blocks, block_size),
        lambda waiting: 9000 + waiting.output_tokens,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        encoder_cache_tokens=encoder,
    )


def step(engine: Scheduler) -> tuple[list[Output], list[KvEvent]]:
    outputs = engine.complete(engine.schedule())
    return outputs, engine.cache.take_events()


def run(engine: Scheduler, *requests: EngineRequest, limit: int = 500) -> list[list[KvEvent]]:
    """Run the requests to their end; the events of every step that had any."""
    for each in requests:
        engine.add(each)
    batches = []
    for _ in range(limit):
        if not engine.has_work:
            return batches
        _, events = step(engine)
        if events:
            batches.append(events)
    raise AssertionError(f"not finished after {limit} steps")


def stored_tokens(events: Iterable[KvEvent]) -> list[list[int]]:
    return [event.token_ids for event in events if isinstance(event, BlockStored)]


def removed_hashes(events: Iterable[KvEvent]) -> list[int | bytes]:
    return [event.block_hashes[0] for event in events if isinstance(event, BlockRemoved)]
