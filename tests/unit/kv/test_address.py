"""Block addresses, bit-exact: the table of docs/design.md, section 4, and what follows from the rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kv.address import MASK64, Span, addresses, chain, local_hash, seed_for, token_bytes_of

TOKENS = list(range(1, 65))
MEDIA = [Span(20, 4, 0xDEADBEEF), Span(32, 8, 9), Span(40, 2, 5)]


@pytest.mark.parametrize(
    ("spans", "lora", "salt", "expected"),
    [
        ([], None, None, "ea06fc71a5ee6e88 ad01835a37dd294c 0d55e56c2bccbd1a 445502a8048d6688"),
        ([], "adapter-a", None, "3cbe841383bf26e8 666207ac2c1acd0f ff5ba03a43b6f77b 0f6fc72a2130b772"),
        ([], None, "tenant-a", "71742dfed90682a9 10a55acc122317d5 7ba34a181b94b878 50f76344152fc88b"),
        (MEDIA, None, None, "ea06fc71a5ee6e88 255c996a3cac3251 c24b75d16f8a27f4 20718a057619da1d"),
    ],
)
def test_the_table_of_the_design(spans: list[Span], lora: str | None, salt: str | None, expected: str) -> None:
    found = addresses(TOKENS, 16, spans, lora=lora, cache_salt=salt)
    assert " ".join(f"{address:016x}" for address in found) == expected


def test_only_full_blocks_have_addresses() -> None:
    assert addresses(TOKENS[:15], 16) == []
    assert addresses(TOKENS[:47], 16) == addresses(TOKENS, 16)[:2]


def test_a_span_counts_in_every_block_it_touches_and_no_other() -> None:
    plain, marked = addresses(TOKENS, 16), addresses(TOKENS, 16, [Span(31, 2, 7)])
    assert [a == b for a, b in zip(plain, marked, strict=True)] == [True, False, False, False]
    assert addresses(TOKENS, 16, [Span(16, 0, 7)]) == plain


def test_a_block_size_must_be_positive() -> None:
    with pytest.raises(ValueError, match="block_size is 0"):
        addresses(TOKENS, 0)


@given(
    st.lists(st.integers(0, 2**32 - 1), max_size=80),
    st.integers(1, 20),
    st.lists(st.integers(0, MASK64), max_size=3),
    st.none() | st.text(max_size=5),
)
def test_addresses_are_the_chain_of_local_hashes(
    tokens: list[int], block_size: int, identities: list[int], salt: str | None
) -> None:
    spans = [Span(3 * index, 3, identity) for index, identity in enumerate(identities)]
    seed, parent, expected = seed_for(None, salt), None, []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        inside = [s.identity for s in spans if s.offset < start + block_size and s.offset + s.length > start]
        parent = chain(parent, local_hash(token_bytes_of(tokens[start : start + block_size]), inside, seed))
        expected.append(parent)
    assert addresses(tokens, block_size, spans, cache_salt=salt) == expected


@given(st.lists(st.integers(0, 9), min_size=8, max_size=40), st.integers(0, 39))
def test_a_change_of_one_token_changes_its_block_and_all_after(tokens: list[int], place: int) -> None:
    place %= len(tokens)
    changed = [*tokens[:place], 10, *tokens[place + 1 :]]
    before, after = addresses(tokens, 4), addresses(changed, 4)
    assert [a == b for a, b in zip(before, after, strict=True)] == [block < place // 4 for block in range(len(before))]
