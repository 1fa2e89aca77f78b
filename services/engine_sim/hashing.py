"""Block hashes of the simulated engine: a chain over (parent, token ids, extra keys).

Any deterministic chain does: consumers must treat engine hashes as opaque. ``seed`` makes two engines name the same
prefix differently, so that nobody gets away with comparing hashes across engines.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Literal

import msgspec
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from services.engine_sim.events import ExtraKeys
from services.engine_sim.pool import BlockHash
from services.engine_sim.request import EngineRequest, MediaSpan

HashForm = Literal["int", "bytes"]


class BlockHasher:
    """Keeps a request's ``block_hashes`` and ``extra_keys`` complete: one of each per full block."""

    def __init__(self, block_size: int, *, form: HashForm = "int", seed: int = 0) -> None:
        if block_size <= 0:
            raise ValueError(f"block_size is {block_size}, expected a positive number of tokens")
        self.block_size = block_size
        self.form = form
        self._root = xxh3_64_digest(b"root", seed)

    def extend(self, request: EngineRequest) -> None:
        """Hash the blocks that became full since the last call. Cost: only those blocks."""
        first = len(request.block_hashes)
        last = len(request.token_ids) // self.block_size
        if first >= last:
            return
        size = self.block_size
        data = array("I", request.token_ids[first * size : last * size]).tobytes()
        keys = keys_by_block(request, first, last, size)
        hashes = request.block_hashes
        parent = self._parent_bytes(hashes[-1]) if hashes else self._root
        width = size * 4
        for index in range(last - first):
            piece = parent + data[index * width : (index + 1) * width]
            if (key := keys[index]) is not None:
                piece += _pack(key)
            if self.form == "int":
                value = xxh3_64_intdigest(piece)
                hashes.append(value)
                parent = value.to_bytes(8, "little")
            else:
                parent = sha256(piece).digest()
                hashes.append(parent)
        request.extra_keys.extend(keys)

    @staticmethod
    def _parent_bytes(parent: BlockHash) -> bytes:
        return parent if isinstance(parent, bytes) else parent.to_bytes(8, "little")


_pack = msgspec.msgpack.Encoder().encode


def keys_by_block(request: EngineRequest, first: int, last: int, block_size: int) -> list[ExtraKeys]:
    """Extra keys of blocks ``[first, last)``, vLLM's order: LoRA name, media, cache salt (first block only)."""
    if not request.media and request.lora_name is None and (request.cache_salt is None or first > 0):
        return [None] * (last - first)
    return [_keys_of(request, block * block_size, (block + 1) * block_size) for block in range(first, last)]


def _keys_of(request: EngineRequest, start: int, end: int) -> ExtraKeys:
    keys: list[Any] = [] if request.lora_name is None else [request.lora_name]
    keys += _media_keys(request.media, start, end)
    if start == 0 and request.cache_salt:
        keys.append(request.cache_salt)
    return tuple(keys) or None


def _media_keys(media: Sequence[MediaSpan], start: int, end: int) -> list[tuple[str, int]]:
    return [(span.identifier, span.offset - start) for span in media if span.overlaps(start, end)]
