"""vLLM's ``extra_keys``: which media, which salt, which LoRA adapter tell a block apart from its token ids.

One entry per block: nil, or a list in the order ``lora_name``, media keys, ``cache_salt`` (first block of a prompt
only), prompt-embeds bytes. What a media key looks like changed twice, and two of the three forms say too little:

* from 0.19 it is ``[identifier, offset]``: unambiguous;
* 0.17 and 0.18 send the bare identifier, so that media and salt are both strings (``Dialect.BARE``);
* 0.11 to 0.16 send no extra_keys at all (``Dialect.NONE``).

Where it can't be told what a block holds, the block and its descendants get no address: an address that is missing
costs a hit, a wrong one costs a wrong decision.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from services.kv.identity import is_ours, parse_engine_uuid
from services.worker.engines.events import Cause, Keys

_Parsed = tuple[tuple[int, ...], str | None]
"""Identities of a block's media, and the salt if it stands here."""


class Dialect(StrEnum):
    """How an engine version writes media into extra_keys."""

    PAIRS = "pairs"
    BARE = "bare"
    NONE = "none"


def dialect_of(version: str) -> Dialect:
    """The dialect of a vLLM version such as ``0.32.0`` or ``0.18.1rc2``; what can't be read counts as current."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None:
        return Dialect.PAIRS
    release = (int(found[1]), int(found[2]))
    if release >= (0, 19):
        return Dialect.PAIRS
    return Dialect.BARE if release >= (0, 17) else Dialect.NONE


@dataclass(slots=True)
class KeyReader:
    """Reads the extra_keys of stored events of one engine.

    ``placeholders`` are the model's media placeholder token ids. ``salts`` are the cache salts this agent has sent:
    a live view. ``salted_in_flight`` says whether such a request may be announcing blocks right now: an engine of
    dialect NONE does not say which roots are salted.
    """

    dialect: Dialect = Dialect.PAIRS
    placeholders: frozenset[int] = frozenset()
    salts: Container[str] = field(default_factory=frozenset)
    salted_in_flight: Callable[[], bool] = bool

    def read(
        self, extra_keys: Sequence[list[Any] | None] | None, lora: str | None, *, root: bool, token_ids: Sequence[int],
        block_size: int, blocks: int,
    ) -> Keys:
        """The keys of one stored event of ``blocks`` blocks; ``root``: its first block has no parent."""
        if extra_keys is None:
            # Current engines leave the field out where nothing is to be said; old ones never say anything.
            if self.dialect is Dialect.NONE:
                return self._without_keys(token_ids, block_size, blocks, root)
            return self._named_or_text(token_ids, block_size, blocks)
        if not any(extra_keys):
            return self._named_or_text(token_ids, block_size, blocks)
        if len(extra_keys) != blocks:
            return Keys(addressable=0, cause=Cause.MALFORMED_KEYS)
        keys = Keys()
        media: list[tuple[int, ...]] = []
        for block, entry in enumerate(extra_keys):
            first = root and block == 0
            tokens = token_ids[block * block_size : (block + 1) * block_size]
            if not entry:
                if not self.placeholders.isdisjoint(tokens):
                    keys.addressable, keys.cause = block, Cause.UNNAMED_MEDIA
                    break
                media.append(())
                continue
            parsed = self._entry(entry[1:] if lora and entry[0] == lora else entry, tokens, first)
            if isinstance(parsed, Cause):
                keys.addressable, keys.cause = block, parsed
                break
            identities, salt = parsed
            media.append(identities)
            if salt is not None:
                keys.salt = salt
        keys.media = media
        if self.dialect is Dialect.PAIRS:
            keys.named = _named(extra_keys[: len(media)])
        return keys

    def _entry(self, entry: list[Any], tokens: Sequence[int], first: bool) -> _Parsed | Cause:
        identities: list[int] = []
        strings: list[str] = []
        for key in entry:
            if isinstance(key, list):
                if len(key) < 2 or not isinstance(key[0], str) or not isinstance(key[1], int) or strings:
                    return Cause.MALFORMED_KEYS
                identities.append(parse_engine_uuid(key[0]))
            elif isinstance(key, str):
                strings.append(key)
            elif isinstance(key, bytes):
                return Cause.PROMPT_EMBEDS
            else:
                return Cause.MALFORMED_KEYS
        if not strings:
            return tuple(identities), None
        if self.dialect is Dialect.BARE and not identities:
            return self._bare(strings, tokens, first)
        if first and len(strings) == 1:
            return tuple(identities), strings[0]
        return Cause.MALFORMED_KEYS

    def _bare(self, strings: list[str], tokens: Sequence[int], first: bool) -> _Parsed | Cause:
        if not first:
            return tuple(map(parse_engine_uuid, strings)), None
        last = strings[-1]
        sent, ours = last in self.salts, is_ours(last)
        if self.placeholders.isdisjoint(tokens):
            # No medium stands here: a lone string is a salt, unless it is an identity whose range opens with text.
            if len(strings) > 1 or (ours and not sent):
                return Cause.AMBIGUOUS_KEYS
            return (), last
        if not sent:
            # Another client's salt would look like one more medium: its identity then is of no image of ours,
            # but the seed would be missing. Only a lone string is safe, for the block does hold a medium.
            if len(strings) > 1 and not ours:
                return Cause.AMBIGUOUS_KEYS
            return tuple(map(parse_engine_uuid, strings)), None
        if len(strings) == 1 or ours:
            return Cause.AMBIGUOUS_KEYS
        return tuple(map(parse_engine_uuid, strings[:-1])), last

    def _without_keys(self, token_ids: Sequence[int], block_size: int, blocks: int, root: bool) -> Keys:
        if root and self.salted_in_flight():
            return Keys(addressable=0, cause=Cause.AMBIGUOUS_KEYS)
        return self._named_or_text(token_ids, block_size, blocks)

    def _named_or_text(self, token_ids: Sequence[int], block_size: int, blocks: int) -> Keys:
        """Where no key says anything: text, up to the first block with a placeholder that nothing names."""
        if self.placeholders.isdisjoint(token_ids):
            return Keys()
        for block in range(blocks):
            if not self.placeholders.isdisjoint(token_ids[block * block_size : (block + 1) * block_size]):
                return Keys(addressable=block, cause=Cause.UNNAMED_MEDIA)
        return Keys()


def _named(extra_keys: Sequence[list[Any] | None]) -> list[tuple[tuple[str, int], ...]] | None:
    """Identifiers and places of each block's media; None where all are of our form. The keys were read before."""
    pairs = [tuple((key[0], key[1]) for key in entry or () if isinstance(key, list)) for entry in extra_keys]
    return pairs if any(not is_ours(name) for block in pairs for name, _ in block) else None
