"""Continuous batching: which request computes how many tokens in the next step. Pure; after vLLM's v1 scheduler."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from services.engine_sim.kv_cache import KvCache
from services.engine_sim.request import EngineRequest

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


class EncoderCache:
    """Which media's encoder outputs are at hand, by identifier, up to a number of prompt tokens."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens
        self._tokens: OrderedDict[str, int] = OrderedDict()
        self._used = 0

    def admit(self, identifier: str, tokens: int) -> bool:
        """Whether the medium must be encoded now; it is at hand afterwards."""
        if identifier in self._tokens:
            self._tokens.move_to_end(identifier)
            return False
        self._tokens[identifier] = tokens
        self._used += tokens
        while self._used > self._capacity and len(self._tokens) > 1:
            self._used -= self._tokens.popitem(last=False)[1]
        return True


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
    ) -> None:
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
        self.encoder_cache = EncoderCache(max_num_batched_tokens)
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
            tokens = min(len(request.token_ids) - request.computed_tokens, budget)
            while not self.cache.allocate(request, tokens):
                preempted = True
                victim = self.running.pop()
                self._preempt(victim)
                if victim is request:
                    return step
            self._plan(step, request, tokens)
            budget -= tokens
            index += 1
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
        tokens = min(len(request.token_ids) - cached, budget)
        if not self.cache.allocate(request, tokens, hit, whole=True):
            return 0
        self.waiting.popleft()
        self.running.append(request)
        self.cache.count_look_up(request, hit)
        request.computed_tokens = cached
        if request.cached_tokens is None:
            request.cached_tokens = cached
        self._plan(step, request, tokens)
        return tokens

    def _plan(self, step: Step, request: EngineRequest, tokens: int) -> None:
        start = request.computed_tokens
        end = start + tokens
        if start >= request.prompt_tokens:
            step.decode_sequences += 1
        else:
            step.prefill_tokens += tokens
        for span in request.media:
            if span.overlaps(start, end) and self.encoder_cache.admit(span.identifier, span.length):
                step.vision_tokens += span.length
        request.computed_tokens = end
        step.work.append((request, tokens))

    def _preempt(self, request: EngineRequest) -> None:
        self.cache.free(request)
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
        self.cache.free(request)
