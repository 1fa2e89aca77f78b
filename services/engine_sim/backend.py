"""The engine behind the HTTP routes: ranks with their loops and event streams, the model, and a log of what ran."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from tokenizers import Tokenizer

from services.engine_sim.asked import Asked
from services.engine_sim.config import SimConfig
from services.engine_sim.core import EngineCore, Ticket
from services.engine_sim.errors import bad_request, not_found
from services.engine_sim.events import KvEvent
from services.engine_sim.expand import Expander, Prompt
from services.engine_sim.exposition import RankState
from services.engine_sim.hashing import BlockHasher
from services.engine_sim.kv_cache import KvCache
from services.engine_sim.loader import MediaLoader
from services.engine_sim.publisher import EventPublisher
from services.engine_sim.request import EngineRequest
from services.engine_sim.scheduler import Sampler, Scheduler
from services.kv.sampling import LOADERS, Loader, Sampling
from services.layout.layouter import Layouter
from services.layout.tokenise import load_tokenizer
from services.runtime.clock import Clock

DEFAULT_MODEL_LEN = 32_768
LOGGED_REQUESTS = 200_000


class Backend:
    """One engine of ``config.data_parallel_size`` ranks, each with its own cache, loop and event stream."""

    def __init__(
        self,
        config: SimConfig,
        layouter: Layouter,
        publishers: list[EventPublisher],
        sampler: Sampler,
        clock: Clock,
    ) -> None:
        self.config = config
        self.clock = clock
        self.started_at = clock.now_ms() / 1000
        self.tokenizer: Tokenizer = load_tokenizer(layouter.card.tokenizer_file)
        self.publishers = publishers
        self.cores = [self._core(publisher, sampler, layouter.card.max_model_len) for publisher in publishers]
        self.max_model_len = self.cores[0].scheduler.max_model_len
        loader = LOADERS.get(layouter.card.model_type, Loader.OPENCV)
        video = config.media_io_kwargs.get("video", {})
        self.loader = MediaLoader(
            Sampling.usual(loader, video.get("fps"), video.get("num_frames")),
            allowed_path=config.allowed_local_media_path,
            fetch_seconds=config.fetch_seconds,
        )
        self.expander = Expander(
            layouter,
            self.loader,
            limits=config.limit_mm_per_prompt,
            trust_request_mm_kwargs=config.trust_request_mm_kwargs,
            media_io_kwargs=config.media_io_kwargs,
        )
        self.executed: OrderedDict[str, int] = OrderedDict()
        self._loops: list[asyncio.Task[None]] = []
        self._turn = 0

    def start(self) -> None:
        """Start every rank's loop."""
        self._loops = [asyncio.get_running_loop().create_task(core.run()) for core in self.cores]

    async def stop(self) -> None:
        """Stop the loops and close connections; requests in flight are lost."""
        for loop in self._loops:
            loop.cancel()
        for loop in self._loops:
            with contextlib.suppress(asyncio.CancelledError):
                await loop
        await self.loader.close()

    def adapter(self, body: Mapping[str, Any]) -> str | None:
        """The LoRA adapter a body asks for, None for the model itself. Raises ApiError for an unknown name."""
        name = body.get("model")
        if name is None or name == self.config.name:
            return None
        if name in self.config.loras:
            return str(name)
        raise not_found(f"The model `{name}` does not exist. Valid aliases: {self.config.name}.", "model")

    def submit(self, prompt: Prompt, asked: Asked, lora: str | None, request_id: str | None = None) -> Submitted:
        """Queue a request on the rank it asks for, or the least loaded. Raises ApiError if it can't ever run."""
        request = EngineRequest(
            request_id or asked.request_id or uuid4().hex[:16],
            list(prompt.token_ids),
            max_tokens=asked.max_tokens or self.max_model_len,
            media=prompt.media,
            stop_after=None if asked.max_tokens else self.config.output_tokens,
            lora_name=lora,
            lora_id=None if lora is None else self.config.loras.index(lora) + 1,
            cache_salt=asked.cache_salt,
            session_id=asked.session_id if self.config.says_sessions else None,
            report_full=asked.report_full,
        )
        if len(request.token_ids) >= self.max_model_len:
            raise bad_request(
                f"This model's maximum context length is {self.max_model_len} tokens. However, your prompt contains "
                f"{request.prompt_tokens} input tokens. Please reduce the length of the input prompt.",
                "input_tokens",
            )
        core = self.cores[self._rank(asked.rank)]
        try:
            ticket = core.submit(request, stream=asked.stream)
        except ValueError as error:
            raise bad_request(str(error)) from None
        self._log(request.request_id)
        return Submitted(core, ticket)

    def reset_prefix_cache(self) -> bool:
        """Forget cached blocks of all ranks; False if any rank still holds some."""
        done = [core.reset_prefix_cache() for core in self.cores]
        return all(done)

    def states(self) -> list[RankState]:
        """What ``/metrics`` tells of each rank."""
        return [self._state(core) for core in self.cores]

    def _rank(self, asked: int | None) -> int:
        if asked is not None:
            if not 0 <= asked < len(self.cores):
                raise bad_request(f"data_parallel_rank {asked} is out of range [0, {len(self.cores)}).")
            return asked
        # Ties go round, so that an idle engine uses all its ranks.
        self._turn = (self._turn + 1) % len(self.cores)
        order = [(self._turn + index) % len(self.cores) for index in range(len(self.cores))]
        return min(order, key=lambda rank: self.cores[rank].in_flight)

    def _log(self, request_id: str) -> None:
        self.executed[request_id] = self.executed.get(request_id, 0) + 1
        while len(self.executed) > LOGGED_REQUESTS:
            self.executed.popitem(last=False)

    def _core(self, publisher: EventPublisher, sampler: Sampler, card_len: int | None) -> EngineCore:
        config = self.config
        hasher = BlockHasher(config.block_size, form=config.hash_form, seed=config.seed)
        scheduler = Scheduler(
            KvCache(config.num_blocks, hasher),
            sampler,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len or card_len or DEFAULT_MODEL_LEN,
            encoder_cache_tokens=config.encoder_cache_tokens,
        )

        def publish(ts: float, events: list[KvEvent]) -> None:
            publisher.publish(ts, events)

        return EngineCore(scheduler, config.timing, publish, self.clock, speedup=config.speedup)

    def _state(self, core: EngineCore) -> RankState:
        cache = core.scheduler.cache
        return RankState(
            running=len(core.scheduler.running),
            waiting=len(core.scheduler.waiting),
            kv_usage=cache.pool.usage,
            queried_tokens=cache.queried_tokens,
            hit_tokens=cache.hit_tokens,
            prompt_tokens=core.prompt_tokens,
            generated_tokens=core.generated_tokens,
            preemptions=core.scheduler.preemptions,
            block_size=self.config.block_size,
            num_gpu_blocks=self.config.num_blocks,
        )


class Submitted:
    """A request on its rank; leaving the ``with`` block drops it if it has not finished."""

    def __init__(self, core: EngineCore, ticket: Ticket) -> None:
        self.request = ticket.request
        self.outputs = ticket.outputs
        self._core = core
        self._ticket = ticket

    def __enter__(self) -> Submitted:
        return self

    def __exit__(self, *_: object) -> None:
        self._core.abort(self._ticket)
