"""Canonical block addresses: one 64-bit number for a prompt prefix that ends at a block.

The rule (docs/design.md, section 4), bit-exact and the same for router and agent:

    seed   = 1337 + XXH3_64(lora; 0) + XXH3_64(cache_salt; 1)                         mod 2**64
    local  = XXH3_64(u32 LE token ids ++ u64 LE identity of each span overlapping the block; seed)
    addr_0 = local_0 ;  addr_i = XXH3_64(u64 LE addr_{i-1} ++ u64 LE local_i; 1337)

Only full blocks have addresses.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from xxhash import xxh3_64_intdigest

CHAIN_SEED = 1337
MASK64 = (1 << 64) - 1
_PAIR = Struct("<QQ")
_U64 = Struct("<Q")


@dataclass(frozen=True, slots=True)
class Span:
    """A medium's whole placeholder range in a prompt: tokens ``[offset, offset + length)``, and which medium it is."""

    offset: int
    length: int
    identity: int


def seed_for(lora: str | None = None, cache_salt: str | None = None) -> int:
    """The seed of every block of a prompt: the LoRA adapter and the cache salt separate prefixes at their root."""
    seed = CHAIN_SEED
    if lora:
        seed += xxh3_64_intdigest(lora.encode(), 0)
    if cache_salt:
        seed += xxh3_64_intdigest(cache_salt.encode(), 1)
    return seed & MASK64


def local_hash(token_bytes: bytes, identities: Sequence[int], seed: int) -> int:
    """Hash of one block: its little-endian u32 token ids, then the identities that overlap it, in prompt order."""
    if identities:
        token_bytes += b"".join(_U64.pack(identity) for identity in identities)
    return xxh3_64_intdigest(token_bytes, seed)


def chain(parent: int | None, local: int) -> int:
    """Address of a block from its parent's address (``None`` at the root) and its local hash."""
    return local if parent is None else xxh3_64_intdigest(_PAIR.pack(parent, local), CHAIN_SEED)


def token_bytes_of(token_ids: Sequence[int]) -> bytes:
    """Little-endian u32 bytes of token ids. Raises OverflowError for an id outside ``[0, 2**32)``."""
    return array("I", token_ids).tobytes()


def addresses(
    token_ids: Sequence[int],
    block_size: int,
    spans: Sequence[Span] = (),
    *,
    lora: str | None = None,
    cache_salt: str | None = None,
) -> list[int]:
    """Addresses of all full blocks of a prompt, in order: ``len(token_ids) // block_size`` numbers.

    ``spans`` stand in prompt order and do not overlap each other.
    """
    if block_size <= 0:
        raise ValueError(f"block_size is {block_size}, expected a positive number of tokens")
    data = token_bytes_of(token_ids)
    width = block_size * 4
    seed = seed_for(lora, cache_salt)
    keys = _identities_by_block(spans, block_size)
    result: list[int] = []
    parent: int | None = None
    for block, start in enumerate(range(0, len(data) - width + 1, width)):
        piece = data[start : start + width]
        local = local_hash(piece, keys[block], seed) if block in keys else xxh3_64_intdigest(piece, seed)
        parent = local if parent is None else xxh3_64_intdigest(_PAIR.pack(parent, local), CHAIN_SEED)
        result.append(parent)
    return result


def _identities_by_block(spans: Sequence[Span], block_size: int) -> dict[int, list[int]]:
    keys: dict[int, list[int]] = {}
    for span in spans:
        if span.length <= 0:
            continue
        for block in range(span.offset // block_size, (span.offset + span.length - 1) // block_size + 1):
            keys.setdefault(block, []).append(span.identity)
    return keys
