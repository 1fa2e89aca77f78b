"""From a chat body to what the engine computes: template, tokens, media in their places with their identifiers."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from schemas.media import MediaKind
from services.engine_sim.content import MediaPart, media_parts
from services.engine_sim.errors import bad_request
from services.engine_sim.loader import Loaded, MediaLoader
from services.engine_sim.media_cache import Lru
from services.engine_sim.request import MediaSpan
from services.layout.families.family import Family, Markers, NotExact
from services.layout.layouter import Layouter
from services.layout.shapes import MediaShape
from services.layout.templates import PromptError

PROCESSOR_CACHE_ITEMS = 8192
INLINE_BYTES = 64 << 10
"""Bodies up to this size are tokenised on the event loop; larger ones in a thread."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids with media expanded, and the media's ranges in prompt order."""

    token_ids: list[int]
    media: Sequence[MediaSpan] = ()

    def media_tokens(self) -> dict[str, int] | None:
        """Placeholder tokens by modality, or None without media: how usage reports them."""
        counts: Counter[str] = Counter()
        for span in self.media:
            counts[span.modality] += span.length
        return dict(counts) or None


@dataclass(frozen=True, slots=True)
class Item:
    """A medium with the name the engine knows it by."""

    identifier: str
    shape: MediaShape


class Expander:
    """Expands prompts of one engine. The processor cache decides by identifier: a known one wins over the content."""

    def __init__(
        self,
        layouter: Layouter,
        loader: MediaLoader,
        *,
        limits: Mapping[str, int],
        trust_request_mm_kwargs: bool = False,
        media_io_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """``media_io_kwargs`` are the server's, by kind of media; a request's own go before them."""
        self.layouter = layouter
        self.loader = loader
        self.processor_cache: Lru[str, MediaShape] = Lru(PROCESSOR_CACHE_ITEMS)
        self._limits = limits
        self._trusts_kwargs = trust_request_mm_kwargs
        self._media_io_kwargs = media_io_kwargs or {}
        self._model_id = str(layouter.card.folder)

    async def expand_chat(self, body: dict[str, Any], size: int) -> Prompt:
        """The prompt of a chat body of ``size`` bytes. Raises ApiError for what an engine would refuse."""
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise bad_request(f"messages is {type(messages).__name__}, expected a list of messages", "messages")
        processor, io_options = self._request_kwargs(body)
        parts = media_parts(messages)
        self._check_limits(parts)
        loaded = await asyncio.gather(*(self._load(part, io_options) for part in parts))
        items = self._identify(parts, loaded, processor, io_options)
        if size > INLINE_BYTES:
            return await asyncio.to_thread(self._expand, body, items, processor)
        return self._expand(body, items, processor)

    def _expand(self, body: dict[str, Any], items: list[Item], processor: Mapping[str, Any]) -> Prompt:
        try:
            token_ids = self.layouter.encode(self.layouter.render(body))
        except (PromptError, ValueError) as error:
            raise bad_request(str(error)) from None
        if not items:
            return Prompt(token_ids)
        family = self.layouter.card.family
        assert family is not None
        try:
            family = family.overridden(processor)
        except NotExact as error:
            raise bad_request(str(error), "mm_processor_kwargs") from None
        return place(token_ids, items, family, self.layouter)

    def _request_kwargs(self, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        found = []
        for name in ("mm_processor_kwargs", "media_io_kwargs"):
            value = body.get(name) or {}
            if not isinstance(value, dict):
                raise bad_request(f"{name} is {type(value).__name__}, expected an object", name)
            if value and not self._trusts_kwargs:
                raise bad_request(
                    f"Per-request {name} are disabled by default. Start the server with --trust-request-mm-kwargs "
                    "only when clients are trusted.",
                    name,
                )
            found.append(value)
        asked = {kind: options for kind, options in found[1].items() if isinstance(options, dict)}
        kinds = {*self._media_io_kwargs, *asked}
        return found[0], {kind: {**self._media_io_kwargs.get(kind, {}), **asked.get(kind, {})} for kind in kinds}

    def _check_limits(self, parts: list[MediaPart]) -> None:
        for kind, count in Counter(part.kind for part in parts).items():
            family = self.layouter.card.family
            limit = 0 if family is None or family.placeholder(kind) is None else self._limits.get(kind, 999)
            if count > limit:
                raise bad_request(f"At most {limit} {kind}(s) may be provided in one prompt.", str(kind))

    async def _load(self, part: MediaPart, io_options: Mapping[str, dict[str, Any]]) -> Loaded | None:
        return None if part.url is None else await self.loader.load(part.kind, part.url, io_options.get(part.kind, {}))

    def _identify(
        self,
        parts: list[MediaPart],
        loaded: Sequence[Loaded | None],
        processor: Mapping[str, Any],
        io_options: Mapping[str, dict[str, Any]],
    ) -> list[Item]:
        items = []
        seen: Counter[MediaKind] = Counter()
        for part, content in zip(parts, loaded, strict=True):
            factors = [processor, io_options.get(part.kind, {})]
            identifier = part.uuid
            if identifier is None or any(factors):
                name = identifier if identifier is not None else content.digest if content is not None else ""
                identifier = self._hash(part.kind, name, factors)
            shape = self.processor_cache.get(identifier)
            if shape is None or shape.height is None:  # without a size: it came processed, with rendered tokens
                if content is None:
                    raise bad_request(
                        f"Cache miss for {part.kind} at index {seen[part.kind]} but data is not provided."
                    )
                shape = content.shape
                self.processor_cache.put(identifier, shape)
            seen[part.kind] += 1
            items.append(Item(identifier, shape))
        return items

    def _hash(self, kind: MediaKind, name: str, factors: list[Mapping[str, Any]]) -> str:
        preimage = orjson.dumps([self._model_id, str(kind), name, *factors], option=orjson.OPT_SORT_KEYS)
        return blake2b(preimage, digest_size=32).hexdigest()


def place(token_ids: list[int], items: list[Item], family: Family, layouter: Layouter) -> Prompt:
    """Put each medium in the place of its kind's next placeholder; further placeholders are just tokens.

    Raises ApiError when there are fewer placeholders than media, or the model can't take a medium.
    """
    waiting = {kind: deque(item for item in items if item.shape.kind is kind) for kind in MediaKind}
    kinds = {family.placeholder(kind): kind for kind, queue in waiting.items() if queue}
    expanded: list[int] = []
    spans: list[MediaSpan] = []
    start = 0
    for position in sorted(position for token in kinds for position in _positions(token_ids, token)):
        queue = waiting[kinds[token_ids[position]]]
        if not queue:
            continue
        item = queue.popleft()
        first, end = _replaced(token_ids, start, position, family.markers(item.shape.kind))
        expanded += token_ids[start:first]
        try:
            tokens = family.expand(item.shape, layouter.encode).token_ids
        except NotExact as error:
            raise bad_request(str(error)) from None
        spans.append(MediaSpan(str(item.shape.kind), item.identifier, len(expanded), len(tokens)))
        expanded += tokens
        start = end
    for kind, queue in waiting.items():
        if queue:
            index = sum(item.shape.kind is kind for item in items) - len(queue)
            raise bad_request(f"Failed to apply prompt replacement for mm_items[{str(kind)!r}][{index}].")
    return Prompt(expanded + token_ids[start:], spans)


def _replaced(token_ids: list[int], start: int, position: int, markers: Markers) -> tuple[int, int]:
    """Where what a medium replaces begins and ends: its placeholder with the markers around it. Raises ApiError."""
    first, end = position - len(markers.before), position + 1 + len(markers.after)
    around = (token_ids[max(first, 0) : position], token_ids[position + 1 : end])
    if first < start or around != (list(markers.before), list(markers.after)):
        raise bad_request("Failed to apply prompt replacement: the placeholder stands without its markers.")
    return first, end


def _positions(token_ids: list[int], token: int | None) -> list[int]:
    found: list[int] = []
    for _ in range(0 if token is None else token_ids.count(token)):
        found.append(token_ids.index(token, found[-1] + 1 if found else 0))  # type: ignore[arg-type]
    return found
