"""One engine with the agent's own eyes on it: chats go in, what its cache then holds is compared with what was due."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import orjson

from schemas.decision import Position
from schemas.types import Message
from services.kv.tier import Tier
from services.layout.families.family import Family
from services.runtime.clock import Clock, SystemClock
from services.runtime.offload import run_in_thread
from services.worker.bindings import Bindings
from services.worker.conformance.chats import Chat, Predicted, predict
from services.worker.endpoints import Source
from services.worker.engine import Engine, EngineError
from services.worker.engine_body import EngineRequest
from services.worker.engines.vllm import VllmEvents
from services.worker.event_stream import EventStream
from services.worker.forward import forward, usage_of
from services.worker.life import EngineFacts
from services.worker.model_layout import ModelLayout
from services.worker.sent_prompts import SentPrompt
from services.worker.sequence import SlotName
from services.worker.sessions import HEADER
from services.worker.slot import Slot
from services.worker.snapshot_schedule import SnapshotSchedule
from services.worker.translate import Translator

EVENT_SECONDS = 5.0
"""How long events that are due may take; an engine that never sends them costs this once a check."""

NOTICE_SECONDS = 15.0
"""A restart whose first events were lost shows in the first silence after them."""

SETTLE_SECONDS = 0.15
"""Nothing more may come after what was expected has come."""


class Nowhere:
    """A sender whose records nobody reads: the slot is all we want."""

    async def send(
        self, topic: str, message: Message | None, *, key: str, partition: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Position:  # fmt: skip
        """Drop a message."""
        return Position(topic=topic, partition=0, offset=0)

    async def send_raw(
        self, topic: str, value: bytes | None, *, key: bytes | None, partition: int | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> Position:  # fmt: skip
        """Drop a record."""
        return Position(topic=topic, partition=0, offset=0)


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one chat."""

    predicted: Predicted
    before: frozenset[int]
    after: frozenset[int]
    prompt_tokens: int | None
    cached_tokens: int | None

    @property
    def expected(self) -> str:
        """In words."""
        new = len(set(self.predicted.addresses) - self.before)
        due = self.predicted.cached_tokens(set(self.before))
        return f"{self.predicted.prompt_tokens} tokens, {new} new blocks at the predicted addresses, {due} cached"

    @property
    def seen(self) -> str:
        """In words."""
        came = self.after - self.before
        hit = len(came & set(self.predicted.addresses))
        cached = "not reported" if self.cached_tokens is None else self.cached_tokens
        more = f" and {len(came) - hit} others" if len(came) > hit else ""
        return f"{self.prompt_tokens} tokens, {hit} new blocks at the predicted addresses{more}, {cached} cached"

    @property
    def as_expected(self) -> bool:
        """Whether tokens, blocks and the cached count are as predicted; an engine need not report the last."""
        predicted = self.predicted
        return (
            self.prompt_tokens == predicted.prompt_tokens
            and self.after - self.before == set(predicted.addresses) - self.before
            and self.cached_tokens in (None, predicted.cached_tokens(set(self.before)))
        )


class Bench:
    """An engine under test. A context: it subscribes to the events of rank 0, and lets go of them."""

    def __init__(
        self, engine: Engine, facts: EngineFacts, layout: ModelLayout, source: Source, decoder: VllmEvents, *,
        ranks: int = 1, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.facts = facts
        self.layout = layout
        self.family: Family | None = layout.card.family
        self.event_seconds = EVENT_SECONDS
        self.slot: Slot
        self._source = source
        self._decoder = decoder
        self._clock = clock or SystemClock()
        self._headers = {"X-data-parallel-rank": "0"} if ranks > 1 else {}
        self.bindings = Bindings(self._clock.monotonic)
        self.bindings.renew()
        self._following: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Bench:
        """Subscribe and catch up."""
        self.slot = self.another_slot()
        await self.slot.begin()
        self._following = asyncio.create_task(self.slot.follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let go."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        self.slot.close()

    def another_slot(self) -> Slot:
        """A slot that knows nothing yet."""
        name = SlotName("conformance", self._source.rank, 1, self.facts.model, self.facts.block_size)
        schedule = SnapshotSchedule(3600.0, lambda low, high: high)
        translator = Translator(self.facts.block_size, media=self.bindings)
        return Slot(name, EventStream(self._source), self._decoder, Nowhere(), self._clock, schedule, translator)

    @property
    def held(self) -> frozenset[int]:
        """Addresses in the engine's device cache, as an agent would publish them."""
        return frozenset(self.slot.translator.resident.published(Tier.DEVICE))

    async def noticed(self) -> bool:
        """Whether events or /metrics show, within seconds, that the engine is another process than before."""
        started_at = (await self.engine.metrics()).started_at
        if None not in (started_at, self.facts.started_at) and started_at != self.facts.started_at:
            return True
        if self._following is None:
            return False
        done, _ = await asyncio.wait([self._following], timeout=NOTICE_SECONDS)
        return bool(done)

    async def predict(self, chat: Chat) -> Predicted:
        """What is due for a chat. Raises EngineError when our own layout of it is not exact."""
        view = await run_in_thread(partial(self.layout.layouter.view, chat.laid_out, chat.shapes, family=self.family))
        if not view.exact:
            raise EngineError(0, f"our own layout is not exact: {view.reason}, {view.detail}")
        return predict(chat, view, self.facts.block_size)

    async def run(self, chat: Chat, *, stream: bool = False) -> Ran:
        """Run a chat to its end and see what the cache holds then. Raises EngineError."""
        predicted = await self.predict(chat)
        before = self.held
        session = self.bindings.own_session()
        headers = {**self._headers, HEADER: session} if self.bindings.active and chat.media else self._headers
        sent = SentPrompt(predicted.addresses, predicted.spans, whole=True, session=session, own=True)
        self.bindings.begin(sent)
        try:
            usage = await (self._streamed(chat) if stream else self._plain(chat, headers))
            await self._settle(set(predicted.addresses))
        finally:
            self.bindings.end(sent)
        return Ran(predicted, before, self.held, *usage)

    async def _plain(self, chat: Chat, headers: Mapping[str, str]) -> tuple[int | None, int | None]:
        usage = usage_of(await self.engine.complete(chat.body, headers))
        return (None, None) if usage is None else (usage.prompt_tokens, usage.cached_tokens)

    async def _streamed(self, chat: Chat) -> tuple[int | None, int | None]:
        body = {**chat.body, "stream": True, "stream_options": {"include_usage": True}}
        outcome = await forward(self.engine, EngineRequest(orjson.dumps(body), self._headers, True, False), _Deaf())
        if outcome.error is not None:
            raise EngineError(outcome.error.status, outcome.error.message)
        usage = outcome.usage
        return (None, None) if usage is None else (usage.prompt_tokens, usage.cached_tokens)

    async def _settle(self, due: set[int]) -> None:
        try:
            async with asyncio.timeout(self.event_seconds):
                while not due <= self.slot.translator.resident.published(Tier.DEVICE):  # noqa: ASYNC110 - a live set
                    await asyncio.sleep(0.02)
        except TimeoutError:
            return
        await asyncio.sleep(SETTLE_SECONDS)


class _Deaf:
    async def first_token(self) -> None:
        """Nothing to do."""

    async def output(self, text: str) -> None:
        """Nothing to do."""
