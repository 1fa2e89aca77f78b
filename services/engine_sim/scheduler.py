"""Continuous batching: which request computes how many tokens in the next step. Pure; after vLLM's v1 scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from services.engine_sim.encoder_cache import EncoderCache
from services.engine_sim.kv_cache import KvCache
from services.engine_sim.request import EngineRequest, MediaSpan

Sampler = Callable[[EngineRequest], int]
"""Gives the next token id of a request whose tokens so far are all computed."""


@dataclass(slots=True)
class Step:
    """One forward pass: how many tokens each request computes, and what that amounts to for the clock."""

    work: list[tuple[EngineRequest, int]] = field(default_factory=list)
    prefill_tokens: int = 0
    decode_sequences: int = 0
    vision_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """A generated token. ``finish_reason`` is set on a request's last."""

    request: EngineRequest
    token_id: int
    finish_reason: str | None


class Scheduler:
    """Running requests first, then waiting ones in order of arrival, within the token budget of a step.

    A running request that finds no free block preempts the youngest one; that starts over later, from its prefix.
    """

    def __init__(
        self,
        cache: KvCache,
        sampler: Sampler,
        *,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 8192,
        max_model_len: int = 32_768,
        encoder_cache_tokens: int | None = None,
    ) -> None:
        """``encoder_cache_tokens``: prompt tokens of media whose encoder outputs are kept; None: a step's tokens."""
        for name, value in (("max_num_seqs", max_num_seqs), ("max_num_batched_tokens", max_num_batched_tokens)):
            if value < 1:
                raise ValueError(f"{name} is {value}, expected at least 1")
        self.cache = cache
        self.sampler = sampler
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = min(max_model_len, (cache.pool.num_blocks - 1) * cache.block_size)
        self.running: list[EngineRequest] = []
        self.waiting: deque[EngineRequest] = deque()
        self.encoder_cache = EncoderCache(
            max_num_batched_tokens if encoder_cache_tokens is None else encoder_cache_tokens
        )
        self.preemptions = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.running or self.waiting)

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises ValueError if it could never run: no prompt, or no room for one token."""
        if not request.token_ids:
            raise ValueError("the prompt is empty, expected at least one token")
        room = self.max_model_len - len(request.token_ids)
        if room < 1:
            raise ValueError(f"the prompt has {request.prompt_tokens} tokens, expected fewer than {self.max_model_len}")
        request.max_tokens = min(request.max_tokens, room)
        self.encoder_cache.grow(max((span.length for span in request.media), default=0))
        self.waiting.append(request)

    def abort(self, request: EngineRequest) -> None:
        """Drop a request wherever it is and free its blocks. A finished one is left alone."""
        if request.finished:
            return
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._finish(request, "abort")

    def schedule(self) -> Step:
        """Plan the next step: blocks are held, and those it fills are committed and announced."""
        step = Step()
        budget = self.max_num_batched_tokens
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            wanted = min(len(request.token_ids) - request.computed_tokens, budget)
            tokens, media = self._with_media(request, request.computed_tokens, wanted)
            index += 1
            if not tokens:
                continue
            while not self.cache.allocate(request, tokens):
                preempted = True
                victim = self.running.pop()
                self._preempt(victim)
                if victim is request:
                    return step
            self._plan(step, request, tokens, media)
            budget -= tokens
        while budget > 0 and self.waiting and not preempted and len(self.running) < self.max_num_seqs:
            planned = self._admit(step, budget)
            if not planned:
                break
            budget -= planned
        return step

    def complete(self, step: Step) -> list[Output]:
        """The step was computed: sample for every request that has caught up with its own tokens."""
        outputs = []
        for request, _ in step.work:
            self._let_go(request, request.computed_tokens)
            if request.finished or request.computed_tokens < len(request.token_ids):
                continue
            if request.output_tokens == 0:
                cached = request.cached_tokens or 0
                committed = request.committed_blocks * self.cache.block_size
                request.created_tokens = max(0, min(committed, request.prompt_tokens) - cached)
            token = self.sampler(request)
            request.token_ids.append(token)
            reason = self._reason_to_stop(request)
            if reason is not None:
                self.running.remove(request)
                self._finish(request, reason)
            outputs.append(Output(request, token, reason))
        return outputs

    def _admit(self, step: Step, budget: int) -> int:
        request = self.waiting[0]
        hit = self.cache.look_up(request)
        cached = len(hit) * self.cache.block_size
        tokens, media = self._with_media(request, cached, min(len(request.token_ids) - cached, budget))
        if not tokens or not self.cache.allocate(request, tokens, hit, whole=True):
            # What waits must hold nothing that a running request may need the room of.
            self._let_go(request)
            return 0
        self.waiting.popleft()
        self.running.append(request)
        self.cache.count_look_up(request, hit)
        request.computed_tokens = cached
        if request.cached_tokens is None:
            request.cached_tokens = cached
        self._plan(step, request, tokens, media)
        return tokens

    def _with_media(self, request: EngineRequest, start: int, tokens: int) -> tuple[int, list[MediaSpan]]:
        """How many tokens from ``start`` a step can compute, and which media it must encode for them.

        It ends before a medium for whose output there is no room now.
        """
        encoded: dict[str, MediaSpan] = {}
        planned = 0
        if start >= request.prompt_tokens:
            return tokens, []
        for span in sorted(request.media, key=lambda span: span.offset):
            if span.offset >= start + tokens:
                break
            if span.end <= start or span.identifier in encoded or self.encoder_cache.use(request, span.identifier):
                continue
            if not self.encoder_cache.make_room(span.length, planned):
                tokens = max(0, span.offset - start)
                break
            encoded[span.identifier] = span
            planned += span.length
        return tokens, list(encoded.values())

    def _let_go(self, request: EngineRequest, computed: int | None = None) -> None:
        """Encoder outputs of tokens that are computed are needed no more; None: of all."""
        for span in request.media:
            if computed is None or span.end <= computed:
                self.encoder_cache.release(request, span.identifier)

    def _plan(self, step: Step, request: EngineRequest, tokens: int, media: list[MediaSpan]) -> None:
        start = request.computed_tokens
        end = start + tokens
        if start >= request.prompt_tokens:
            step.decode_sequences += 1
        else:
            step.prefill_tokens += tokens
        for span in media:
            self.encoder_cache.take(request, span.identifier, span.length)
            step.vision_tokens += span.length
        request.computed_tokens = end
        step.work.append((request, tokens))

    def _preempt(self, request: EngineRequest) -> None:
        self.cache.free(request)
        self._let_go(request)
        request.computed_tokens = 0
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _reason_to_stop(self, request: EngineRequest) -> str | None:
        if request.stop_after is not None and request.output_tokens >= request.stop_after:
            return "stop"
        return "length" if request.output_tokens >= request.max_tokens else None

    def _finish(self, request: EngineRequest, reason: str) -> None:
        request.finish_reason = reason
        self._let_go(request)
        self.cache.free(request)
