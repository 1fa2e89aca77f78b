"""Block hashes name a prefix: equal prefixes equal hashes, any difference before or in the block another one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine_sim.hashing import BlockHasher, HashForm
from services.engine_sim.pool import BlockHash
from services.engine_sim.request import EngineRequest, MediaSpan

A = MediaSpan("image", "A", 2, 7)
B = MediaSpan("image", "B", 10, 3)


def hashes(request: EngineRequest, *, form: HashForm = "int", seed: int = 0) -> list[BlockHash]:
    BlockHasher(4, form=form, seed=seed).extend(request)
    return request.block_hashes


def of(
    *token_ids: int, media: tuple[MediaSpan, ...] = (), salt: str | None = None, lora: str | None = None
) -> EngineRequest:
    return EngineRequest("r", list(token_ids), 1, media, cache_salt=salt, lora_name=lora)


def test_only_full_blocks_are_hashed() -> None:
    assert len(hashes(of(*range(11)))) == 2


def test_a_block_names_its_whole_prefix() -> None:
    one, other = hashes(of(1, 2, 3, 4, 9, 9, 9, 9)), hashes(of(5, 2, 3, 4, 9, 9, 9, 9))
    assert one[1] != other[1]


def test_generated_tokens_go_on_with_the_chain() -> None:
    grown = of(1, 2, 3, 4, 5)
    hasher = BlockHasher(4)
    hasher.extend(grown)
    grown.token_ids += [6, 7, 8]
    hasher.extend(grown)
    assert grown.block_hashes == hashes(of(1, 2, 3, 4, 5, 6, 7, 8))


def test_each_block_carries_the_media_that_overlap_it_with_their_offset_from_its_start() -> None:
    request = of(*range(16), media=(A, B), salt="s")
    hashes(request)
    assert request.extra_keys == [(("A", 2), "s"), (("A", -2),), (("A", -6), ("B", 2)), (("B", -2),)]


def test_a_lora_stands_first_in_every_block_and_the_salt_last_in_the_first() -> None:
    request = of(*range(12), media=(replace(A, length=2),), salt="s", lora="l")
    hashes(request)
    assert request.extra_keys == [("l", ("A", 2), "s"), ("l",), ("l",)]


@pytest.mark.parametrize("other", [of(*range(8), salt="s"), of(*range(8), lora="l"), of(*range(8), media=(A,))])
def test_salt_lora_and_media_make_another_prefix(other: EngineRequest) -> None:
    assert not set(hashes(of(*range(8)))) & set(hashes(other))


def test_engines_with_other_seeds_share_no_hash() -> None:
    assert not set(hashes(of(*range(8)), seed=1)) & set(hashes(of(*range(8)), seed=2))


def test_hashes_are_u64_or_32_bytes() -> None:
    assert all(isinstance(value, int) and 0 <= value < 1 << 64 for value in hashes(of(*range(40))))
    assert all(isinstance(value, bytes) and len(value) == 32 for value in hashes(of(*range(40)), form="bytes"))


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(0, 40))
def test_a_common_prefix_has_common_hashes(token_ids: list[int], cut: int) -> None:
    assert hashes(of(*token_ids[:cut])) == hashes(of(*token_ids))[: len(token_ids[:cut]) // 4]
