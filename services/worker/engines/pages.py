"""Pages of an engine's cache, put together to blocks of the size that is routed with. Pure.

SGLang's radix cache announces pages, usually of one token. An address speaks of a whole block, so a block is stored
once all its pages are, and gone as soon as one of them is. A page's engine hash is trusted to name one prefix only;
where it turns out to name two (older engines hash a page's own tokens), it names none from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from services.kv.tier import Tier
from services.worker.engines.events import (
    Cause,
    Cleared,
    EngineHash,
    Event,
    Keys,
    Removed,
    Stored,
    Unaddressable,
)

Block = tuple[list[int], tuple[int, ...]]
"""Canonical token ids of a block, and the identities of the media that overlap it, in prompt order."""

ReadBlock = Callable[[Sequence[int]], Block | Cause]
"""Reads an engine's token ids of one block."""


class _Page:
    __slots__ = ("announced", "children", "hash", "lora", "parent", "place", "tiers", "tokens")

    def __init__(self, engine_hash: EngineHash, parent: _Page | None, tokens: list[int], place: int, lora: str | None):
        self.hash = engine_hash
        self.parent = parent
        self.tokens = tokens
        self.place = place
        self.lora = lora
        self.tiers: set[Tier] = set()
        self.announced: set[Tier] = set()
        self.children: list[_Page] = []


class PageGrouper:
    """Turns events of pages into events of blocks. ``block_size`` is a multiple of ``page_size``."""

    def __init__(self, page_size: int, block_size: int, read: ReadBlock) -> None:
        if page_size <= 0 or block_size % page_size:
            raise ValueError(f"block_size is {block_size}, expected a multiple of the engine's page size {page_size}")
        self.page_size = page_size
        self.block_size = block_size
        self._places = block_size // page_size
        self._read = read
        self._pages: dict[EngineHash, _Page] = {}
        self._ambiguous: set[EngineHash] = set()

    def __len__(self) -> int:
        return len(self._pages)

    def clear(self) -> None:
        """Nothing is known any more."""
        self._pages.clear()

    def grouped(self, event: Event) -> list[Event]:
        """The events of blocks that follow from one event of pages."""
        if isinstance(event, Stored):
            return list(self._stored(event))
        if isinstance(event, Removed):
            return list(self._removed(event))
        if isinstance(event, Cleared):
            self.clear()
        return [event]

    def _stored(self, event: Stored) -> Iterator[Event]:
        count, width = len(event.hashes), self.page_size
        if event.tier is None or not event.reusable:
            yield Unaddressable(Cause.OTHER_PLACE if event.reusable else Cause.OTHER_GROUP, count)
        elif event.keys.addressable == 0:
            yield Unaddressable(event.keys.cause or Cause.MALFORMED_KEYS, count)
        elif event.block_size != width or len(event.token_ids) != count * width:
            yield Unaddressable(Cause.MISFIT, count)
        else:
            parent = event.parent
            for index, engine_hash in enumerate(event.hashes):
                tokens = event.token_ids[index * width : (index + 1) * width]
                yield from self._page(engine_hash, parent, tokens, event.tier, event.lora)
                parent = engine_hash

    def _page(
        self, engine_hash: EngineHash, parent: EngineHash | None, tokens: list[int], tier: Tier, lora: str | None
    ) -> Iterator[Event]:
        if engine_hash in self._ambiguous:
            yield Unaddressable(Cause.AMBIGUOUS_KEYS, 1)
            return
        above = None if parent is None else self._pages.get(parent)
        page = self._pages.get(engine_hash)
        if page is not None and (page.parent is not above or page.tokens != tokens or page.lora != lora):
            self._ambiguous.add(engine_hash)
            yield from self._forget(page)
            yield Unaddressable(Cause.AMBIGUOUS_KEYS, 1)
            return
        if page is None:
            if above is None and parent is not None:
                yield Unaddressable(Cause.UNKNOWN_PARENT, 1)
                return
            place = 0 if above is None else (above.place + 1) % self._places
            page = self._pages[engine_hash] = _Page(engine_hash, above, tokens, place, lora)
            if above is not None:
                above.children.append(page)
        if tier not in page.tiers:
            page.tiers.add(tier)
            for end in self._ends(page):
                yield from self._announce(end, tier)

    def _announce(self, end: _Page, tier: Tier) -> Iterator[Event]:
        path = self._path(end)
        if tier in end.announced or any(tier not in page.tiers for page in path):
            return
        block = self._read([token for page in path for token in page.tokens])
        if isinstance(block, Cause):
            yield Unaddressable(block, 1)
            return
        end.announced.add(tier)
        before = path[0].parent
        yield Stored(
            [end.hash], None if before is None else before.hash, block[0], self.block_size, tier, end.lora,
            Keys(media=[block[1]] if block[1] else None),
        )  # fmt: skip

    def _removed(self, event: Removed) -> Iterator[Event]:
        for engine_hash in event.hashes:
            page = self._pages.get(engine_hash)
            if page is None or event.tier is None or event.tier not in page.tiers:
                continue
            yield from self._withdraw(page, event.tier)
            page.tiers.discard(event.tier)
            self._prune(page)

    def _withdraw(self, page: _Page, tier: Tier) -> Iterator[Event]:
        for end in self._ends(page):
            if tier in end.announced:
                end.announced.discard(tier)
                yield Removed([end.hash], tier)

    def _forget(self, page: _Page) -> Iterator[Event]:
        """Take back a page and all that stands on it."""
        family = [page]
        for member in family:
            family.extend(member.children)
        for member in reversed(family):
            for tier in tuple(member.announced):
                yield Removed([member.hash], tier)
            self._pages.pop(member.hash, None)
        # The end of its own block may be one of them already; ends above are not touched by it.
        if page.parent is not None:
            page.parent.children.remove(page)

    def _prune(self, page: _Page) -> None:
        """Drop pages that are nowhere and carry nothing, upwards."""
        here: _Page | None = page
        while here is not None and not here.tiers and not here.children:
            self._pages.pop(here.hash, None)
            if here.parent is not None:
                here.parent.children.remove(here)
            here = here.parent

    def _ends(self, page: _Page) -> Iterator[_Page]:
        """The last pages of the blocks that a page stands in."""
        if page.place == self._places - 1:
            yield page
            return
        waiting = list(page.children)
        while waiting:
            member = waiting.pop()
            if member.place == self._places - 1:
                yield member
            else:
                waiting.extend(member.children)

    def _path(self, end: _Page) -> list[_Page]:
        path = [end]
        while path[-1].place and path[-1].parent is not None:
            path.append(path[-1].parent)
        return path[::-1]
