"""extra_keys in every dialect: media, salt, LoRA, embeddings, and what must not be guessed."""

from __future__ import annotations

from typing import Any

import pytest

from services.kv.identity import engine_uuid, foreign_identity
from services.worker.engines.events import Cause, Keys
from services.worker.engines.vllm_keys import Dialect, KeyReader, dialect_of

PAD = 99
A, B = 0xA, 0xB
OURS_A, OURS_B = engine_uuid(A), engine_uuid(B)


def read(
    reader: KeyReader, extra_keys: list[Any] | None, *, lora: str | None = None, root: bool = True,
    tokens: str = "tttt",
) -> Keys:
    """Blocks of two tokens; ``tokens`` spells them: t text, p a media placeholder."""
    ids = [PAD if token == "p" else 1 for token in tokens]
    return reader.read(extra_keys, lora, root=root, token_ids=ids, block_size=2, blocks=len(tokens) // 2)


@pytest.mark.parametrize(
    ("version", "dialect"),
    [
        ("0.11.0", Dialect.NONE), ("0.16.2", Dialect.NONE), ("0.17.0", Dialect.BARE), ("0.18.1", Dialect.BARE),
        ("0.19.0rc1", Dialect.PAIRS), ("0.33.0", Dialect.PAIRS), ("v1.0", Dialect.PAIRS), ("nightly", Dialect.PAIRS),
    ],
)  # fmt: skip
def test_the_version_tells_the_dialect(version: str, dialect: Dialect) -> None:
    assert dialect_of(version) is dialect


class TestPairs:
    reader = KeyReader(Dialect.PAIRS, frozenset({PAD}))

    def test_text_has_no_keys(self) -> None:
        assert read(self.reader, [None, None]) == Keys()
        assert read(self.reader, None) == Keys()

    def test_media_are_lists_in_prompt_order_ours_or_foreign(self) -> None:
        keys = read(self.reader, [[[OURS_A, 1]], [[OURS_A, -1], ["blake3", 0]]])
        named = [((OURS_A, 1),), ((OURS_A, -1), ("blake3", 0))]
        assert keys == Keys(media=[(A,), (A, foreign_identity("blake3"))], named=named)

    def test_the_string_left_in_a_roots_first_block_is_the_salt(self) -> None:
        assert read(self.reader, [[[OURS_A, 0], "salt-1"], None]) == Keys(salt="salt-1", media=[(A,), ()])

    def test_the_loras_name_comes_first_and_says_nothing_new(self) -> None:
        keys = read(self.reader, [["adapter", [OURS_A, 0], "adapter"], ["adapter"]], lora="adapter")
        assert keys == Keys(salt="adapter", media=[(A,), ()])

    @pytest.mark.parametrize(
        ("keys", "root", "cause"),
        [
            ([None, [b"embeds"]], True, Cause.PROMPT_EMBEDS),
            ([None, ["salt"]], True, Cause.MALFORMED_KEYS),
            ([None, ["salt"]], False, Cause.MALFORMED_KEYS),
            ([None, [7]], True, Cause.MALFORMED_KEYS),
            ([None, [[7, 0]]], True, Cause.MALFORMED_KEYS),
            ([None, [[]]], True, Cause.MALFORMED_KEYS),
        ],
    )
    def test_what_is_no_key_ends_the_addressable_part(self, keys: list[Any], root: bool, cause: Cause) -> None:
        assert read(self.reader, keys, root=root) == Keys(media=[()], addressable=1, cause=cause)

    def test_salt_before_media_or_two_salts_are_no_form_of_vllm(self) -> None:
        assert read(self.reader, [["salt", [OURS_A, 0]], None]).cause is Cause.MALFORMED_KEYS
        assert read(self.reader, [["salt", "salt"], None]).addressable == 0

    def test_one_entry_per_block_or_none_counts(self) -> None:
        assert read(self.reader, [[[OURS_A, 0]]]) == Keys(addressable=0, cause=Cause.MALFORMED_KEYS)


class TestBare:
    """0.17 and 0.18: media and salt are both strings."""

    reader = KeyReader(Dialect.BARE, frozenset({PAD}), salts={"sent", OURS_B})

    def test_beyond_the_first_block_every_string_is_a_medium(self) -> None:
        assert read(self.reader, [None, ["x", OURS_A]]) == Keys(media=[(), (foreign_identity("x"), A)])
        assert read(self.reader, [["sent"], None], root=False) == Keys(media=[(foreign_identity("sent"),), ()])

    def test_in_a_block_of_text_a_lone_string_is_the_salt(self) -> None:
        assert read(self.reader, [["anybody's"], None]) == Keys(salt="anybody's", media=[(), ()])

    def test_in_a_block_with_placeholders_a_lone_string_is_the_medium(self) -> None:
        assert read(self.reader, [[OURS_A], None], tokens="tptt") == Keys(media=[(A,), ()])

    def test_a_salt_we_sent_is_told_from_the_media_before_it(self) -> None:
        assert read(self.reader, [[OURS_A, "sent"], None], tokens="tptt") == Keys(salt="sent", media=[(A,), ()])

    def test_two_media_of_ours_are_two_media(self) -> None:
        assert read(self.reader, [["x", OURS_A], None], tokens="pptt") == Keys(media=[(foreign_identity("x"), A), ()])

    @pytest.mark.parametrize(
        ("keys", "tokens"),
        [
            ([["x", "unsent"], None], "tptt"),  # a second medium or another client's salt
            ([["sent"], None], "tptt"),  # a medium named like a salt of ours
            ([[OURS_A, OURS_B], None], "tptt"),  # a salt in the form of an identity
            ([[OURS_A], None], "tttt"),  # a range that opens with text, or a salt in our form
            ([["x", "y"], None], "tttt"),
        ],
    )
    def test_what_can_be_read_in_two_ways_is_not_read(self, keys: list[Any], tokens: str) -> None:
        found = read(self.reader, keys, tokens=tokens)
        assert (found.addressable, found.cause) == (0, Cause.AMBIGUOUS_KEYS)


class TestNone:
    """0.11 to 0.16: no extra_keys at all."""

    def test_text_is_text(self) -> None:
        assert read(KeyReader(Dialect.NONE, frozenset({PAD})), None) == Keys()

    def test_from_the_first_block_with_a_placeholder_nothing_is_addressable(self) -> None:
        found = read(KeyReader(Dialect.NONE, frozenset({PAD})), None, tokens="tttptt")
        assert found == Keys(addressable=1, cause=Cause.UNNAMED_MEDIA)

    def test_roots_are_not_read_while_a_salted_request_may_announce_them(self) -> None:
        reader = KeyReader(Dialect.NONE, frozenset({PAD}), salted_in_flight=lambda: True)
        assert read(reader, None).addressable == 0
        assert read(reader, None, root=False) == Keys()
