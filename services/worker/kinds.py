"""The kinds of engines an agent can stand beside: how each is asked, heard, and told which medium it gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from schemas.media import MediaKind
from services.kv.identity import engine_uuid
from services.runtime.settings import Settings
from services.worker.bindings import Bindings
from services.worker.endpoints import sources
from services.worker.engine import Engine, EngineError
from services.worker.engine_metrics import EngineMetrics
from services.worker.engines.events import Decodes
from services.worker.engines.pads import PadReader, SentPads
from services.worker.engines.pages import PageGrouper
from services.worker.engines.sglang import SglangEvents
from services.worker.engines.trtllm import TrtllmEvents
from services.worker.engines.vllm import VllmEvents
from services.worker.engines.vllm_keys import KeyReader, dialect_of
from services.worker.event_stream import EventStream, Streams
from services.worker.life import EngineFacts, ask_facts
from services.worker.model_layout import ModelLayout
from services.worker.polling_stream import PollingStream
from services.worker.salts import Salts
from services.worker.sglang_engine import SglangEngine
from services.worker.translate import GroupingTranslator, Translator
from services.worker.trtllm_engine import TrtllmEngine

ROUTED_BLOCK = 16
"""Tokens of a block where an engine's pages are smaller and settings name no block size."""


@dataclass(frozen=True, slots=True)
class Ear:
    """How one rank is heard: its stream (None: it publishes nothing), its decoder, its translator."""

    rank: int
    stream: Streams | None
    decoder: Decodes
    translator: Translator


@dataclass(frozen=True, slots=True)
class Hearing:
    """What an engine's events are read with."""

    facts: EngineFacts
    metrics: EngineMetrics
    layout: ModelLayout | None
    salts: Salts
    bindings: Bindings | None = None

    @property
    def media_tokens(self) -> frozenset[int]:
        """Ids that stand in media only."""
        return self.layout.placeholders if self.layout is not None else frozenset()

    @property
    def placeholder(self) -> int | None:
        """An image's."""
        family = None if self.layout is None else self.layout.card.family
        return None if family is None else family.placeholder(MediaKind.IMAGE)


class EngineKind(ABC):
    """One kind of engine, beside one agent."""

    name: ClassVar[str]
    tokenizes: ClassVar[bool]
    """Whether it tells a chat's token ids, media expanded; else its layout is proven by its events."""
    keeps_encoder_outputs: ClassVar[bool] = False
    """Whether encoder outputs stay after a request, found by the media's names, by vLLM's rule."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @abstractmethod
    def engine(self) -> Engine:
        """Its HTTP server."""

    @abstractmethod
    async def ears(self, engine: Engine, hearing: Hearing) -> list[Ear]:
        """One for each rank. Raises EngineError."""

    async def facts(self, engine: Engine) -> tuple[EngineFacts, EngineMetrics]:
        """Who it is. Raises EngineError."""
        return await ask_facts(engine, self.settings.block_sizes, kind=self.name)

    def uuid(self, identity: int) -> str:
        """An identity as the engine is told it."""
        return engine_uuid(identity)

    def sent(self, identity: int) -> None:  # noqa: B027 - most kinds need not remember
        """A medium goes to the engine under this identity."""


class Vllm(EngineKind):
    """KV events over ZMQ, media by name."""

    name = "vllm"
    tokenizes = True
    keeps_encoder_outputs = True

    def engine(self) -> Engine:
        """Its HTTP server."""
        return Engine(self.settings.worker_engine_url)

    async def ears(self, engine: Engine, hearing: Hearing) -> list[Ear]:
        """One for each rank that publishes, else deaf ones."""
        salts = hearing.salts
        reader = KeyReader(dialect_of(hearing.facts.version), hearing.media_tokens, salts, salts.in_flight)
        return await _over_zmq(
            engine, self.settings, hearing, lambda: VllmEvents(reader),
            lambda: Translator(hearing.facts.block_size, media=hearing.bindings),
        )  # fmt: skip


class Sglang(EngineKind):
    """KV events over ZMQ, of pages; media by pads made of their hashes. Not run on the real engine."""

    name = "sglang"
    tokenizes = False

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.pads = SentPads()

    def engine(self) -> SglangEngine:
        """Its HTTP server."""
        return SglangEngine(self.settings.worker_engine_url)

    async def facts(self, engine: Engine) -> tuple[EngineFacts, EngineMetrics]:
        """Who it is; its pages are put together to blocks of the one size in settings, or of about 16 tokens."""
        assert isinstance(engine, SglangEngine)
        page = await engine.page_size()
        sizes = self.settings.block_sizes
        if len(sizes) == 1:
            if sizes[0] % page:
                raise EngineError(
                    200, f"block size {sizes[0]} is no multiple of the engine's page size {page}: set "
                    "KVROUTE_BLOCK_SIZES to a multiple, or start the engine with another --page-size"
                )  # fmt: skip
            block_size = sizes[0]
        else:
            block_size = page * max(1, ROUTED_BLOCK // page)
        return await ask_facts(engine, (block_size,), kind=self.name, page_size=page)

    async def ears(self, engine: Engine, hearing: Hearing) -> list[Ear]:
        """One for each rank that publishes, else deaf ones."""
        facts = hearing.facts
        read = PadReader(self.pads, hearing.placeholder, hearing.media_tokens)
        page = facts.page_size or facts.block_size
        return await _over_zmq(
            engine, self.settings, hearing, lambda: SglangEvents(hearing.salts.in_flight),
            lambda: GroupingTranslator(PageGrouper(page, facts.block_size, read)),
        )  # fmt: skip

    def uuid(self, identity: int) -> str:
        """16 digits, never more: with zeros behind them all pads would be equal."""
        return f"{identity:016x}"

    def sent(self, identity: int) -> None:
        """Its pad will have to be turned back."""
        self.pads.sent(identity)


class Trtllm(EngineKind):
    """KV events by polling, media by name. Not run on the real engine."""

    name = "trtllm"
    tokenizes = False

    def engine(self) -> TrtllmEngine:
        """Its HTTP server."""
        return TrtllmEngine(self.settings.worker_engine_url)

    async def ears(self, engine: Engine, hearing: Hearing) -> list[Ear]:
        """One rank: its events don't say which."""
        assert isinstance(engine, TrtllmEngine)
        size, layout = hearing.facts.block_size, hearing.layout
        vocabulary = layout.layouter.tokeniser.size if layout is not None else 1 << 31
        decoder = TrtllmEvents(
            size, vocabulary=vocabulary, placeholder=hearing.placeholder, media_tokens=hearing.media_tokens
        )
        return [Ear(0, PollingStream(engine.drain_events), decoder, Translator(size))]


KINDS: dict[str, type[EngineKind]] = {kind.name: kind for kind in (Vllm, Sglang, Trtllm)}
"""By ``KVROUTE_WORKER_ENGINE``."""


def kind_of(settings: Settings) -> EngineKind:
    """The kind settings name."""
    return KINDS[settings.worker_engine](settings)


async def _over_zmq(
    engine: Engine, settings: Settings, hearing: Hearing, decoder: Callable[[], Decodes],
    translator: Callable[[], Translator],
) -> list[Ear]:  # fmt: skip
    ranks = len(hearing.metrics.loads)
    found = sources(
        await engine.event_sources(), engine.url, events=settings.worker_events, replay=settings.worker_replay,
        ranks=ranks or None,
    )  # fmt: skip
    streams: list[tuple[int, Streams | None]] = [(source.rank, EventStream(source)) for source in found]
    return [
        Ear(rank, stream, decoder(), translator())
        for rank, stream in streams or [(rank, None) for rank in range(max(1, ranks))]
    ]
