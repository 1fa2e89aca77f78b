"""Remembered pieces never change a token: everything is compared with tokenising the whole text at once."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from services.layout.tokenise import CHUNK, ENTRY_COST, Tokeniser, load_tokenizer
from tests.unit.layout.golden import MODELS

VOCABULARIES = ["qwen2-vl", "qwen3-vl", "qwen3.5"]
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|image_pad|>", "<|vision_start|>", "<tool_call>", "<think>"]
AWKWARD = [
    "<|im_", "start|>", "<", "|>", " ", "  ", "\n", "\r\n", "\t", "e\u0301", "\u0301", "a\u0300\u0301", "\u212b",
    "\u1100\u1161", "\uac00", "don't", "'LL", "123", "\uff14", "\u00a0", "\u200d", "👩\u200d👩\u200d👧", "\x00",
    "Ünï", "привет", "日本", "\ufb01", " a", "b ", "...", "'s t", "\u017f", "\ufeff",
]  # fmt: skip
PIECES = st.sampled_from([*SPECIALS, *AWKWARD, "word", " word"]) | st.text(max_size=6)
TEXTS = st.lists(PIECES, max_size=30).map("".join)


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module", params=VOCABULARIES)
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, Tokeniser]:
    file = MODELS / request.param / "tokenizer.json"
    return load_tokenizer(file), Tokeniser.load(file, cache_tokens=2_000)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=TEXTS)
def test_any_text_is_tokenised_as_a_whole_would_be(pair: tuple[Tokenizer, Tokeniser], text: str) -> None:
    tokenizer, tokeniser = pair
    assert tokeniser.encode(text) == whole(tokenizer, text)
    assert tokeniser.encode(text) == whole(tokenizer, text), "from memory"


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(parts=st.lists(st.sampled_from([*AWKWARD, " word", "word", " a b c", "it's "]), min_size=1, max_size=12))
def test_long_text_is_cut_without_a_trace(pair: tuple[Tokenizer, Tokeniser], parts: list[str]) -> None:
    tokenizer, tokeniser = pair
    text = "".join(parts) * (2 * CHUNK // sum(map(len, parts)) + 1)
    assert tokeniser.encode(text) == whole(tokenizer, text)


def test_a_hundred_thousand_characters() -> None:
    tokenizer = load_tokenizer(MODELS / "qwen3-vl/tokenizer.json")
    text = "".join(f"Line {n} of the log: it's é {n * 7919} ok, isn't it?\n" for n in range(2_500))
    assert len(text) > 100_000
    assert Tokeniser(tokenizer, cache_tokens=10**6).encode(text) == whole(tokenizer, text)


def test_a_document_is_cut_at_the_same_places_whatever_follows(pair: tuple[Tokenizer, Tokeniser]) -> None:
    _, tokeniser = pair
    document = "a shared document with many words in it " * 200
    one, other = ([text for text, _ in tokeniser.pieces(document + tail)] for tail in ("first question", "second"))
    assert len(one) > 3
    assert one[:-1] == other[:-1]


def test_text_that_is_no_unicode_is_refused(pair: tuple[Tokenizer, Tokeniser]) -> None:
    with pytest.raises(ValueError, match="not valid Unicode"):
        pair[1].encode("a\ud800b")


class TestSettled:
    def test_up_to_the_last_special_token(self, pair: tuple[Tokenizer, Tokeniser]) -> None:
        text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>user\nthe"
        assert pair[1].settled(text) == len("<|im_start|>user\nhi<|im_end|>\n<|im_start|>")
        assert pair[1].settled("no special token") == 0

    @settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(start=TEXTS, end=TEXTS)
    def test_its_tokens_stay_whatever_follows(self, pair: tuple[Tokenizer, Tokeniser], start: str, end: str) -> None:
        tokenizer, tokeniser = pair
        kept = tokeniser.encode(start[: tokeniser.settled(start)])
        assert whole(tokenizer, start + end)[: len(kept)] == kept

    def test_a_token_that_could_still_grow_does_not_count(self) -> None:
        tokeniser = Tokeniser(small(["<a>", "<a><b>"]))
        assert tokeniser.settled("x<a>") == 0
        assert tokeniser.settled("x<a>y") == 4


class TestMemory:
    def test_it_is_bounded_and_forgets_the_oldest(self) -> None:
        tokeniser = Tokeniser(small(["<s>"]), cache_tokens=3 * (5 + ENTRY_COST))
        for word in ("aaaaa", "bbbbb", "ccccc", "aaaaa", "ddddd"):
            tokeniser.encode(word)
        assert tokeniser.held_tokens == 3 * (5 + ENTRY_COST)
        assert [*tokeniser._pieces] == ["ccccc", "aaaaa", "ddddd"]

    def test_a_piece_over_the_bound_is_not_kept(self) -> None:
        tokeniser = Tokeniser(small(["<s>"]), cache_tokens=30)
        assert len(tokeniser.encode("a" * 50)) == 50
        assert tokeniser.held_tokens == 0

    def test_without_a_bound_nothing_is_kept(self) -> None:
        tokeniser = Tokeniser(small(["<s>"]))
        tokeniser.encode("aaa")
        assert tokeniser.held_tokens == 0

    def test_threads_may_share_it(self) -> None:
        tokeniser = Tokeniser(small(["<s>"]), cache_tokens=500)
        expected = {text: tokeniser.encode(text) for text in ("a<s>b" * n for n in range(1, 40))}
        wrong: list[str] = []

        def work() -> None:
            wrong.extend(text for _ in range(20) for text, ids in expected.items() if tokeniser.encode(text) != ids)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert tokeniser.held_tokens <= 500


class TestVocabulariesThatMayNotBeCut:
    @pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
    def test_tokens_with_flags(self, flag: str) -> None:
        tokenizer = small([AddedToken("<s>", special=True, normalized=False, **{flag: True})])
        tokeniser = Tokeniser(tokenizer, cache_tokens=100)
        assert not tokeniser.splits
        for text in ("a <s> b", "a<s>b", " <s> "):
            assert tokeniser.encode(text) == whole(tokenizer, text)
        assert tokeniser.settled("a<s>b") == 0

    def test_pre_tokenisers_that_look_at_the_place(self) -> None:
        tokenizer = small(["<s>"])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        assert not Tokeniser(tokenizer).splits

    def test_normalisers_that_prepend(self) -> None:
        tokenizer = small(["<s>"])
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Prepend("_")])
        assert not Tokeniser(tokenizer).splits

    def test_tokens_found_after_normalising_are_left_to_the_library(self) -> None:
        tokenizer = small([AddedToken("<s>", special=True, normalized=False), AddedToken("Bb", normalized=True)])
        tokenizer.normalizer = normalizers.Lowercase()
        tokeniser = Tokeniser(tokenizer, cache_tokens=100)
        assert tokeniser.splits
        for text in ("aBBb<s>bb", "Bb", "<s>Bb<s>"):
            assert tokeniser.encode(text) == whole(tokenizer, text)

    def test_unknown_patterns_are_cut_at_special_tokens_only(self) -> None:
        tokeniser = Tokeniser(small(["<s>"]))
        assert [text for text, _ in tokeniser.pieces("a a" * CHUNK)] == ["a a" * CHUNK]


class TestLoading:
    def test_truncation_and_padding_of_the_file_are_off(self, tmp_path: Path) -> None:
        tokenizer = small(["<s>"])
        tokenizer.enable_truncation(2)
        tokenizer.enable_padding(length=9)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        assert len(Tokeniser.load(tmp_path / "tokenizer.json").encode("aaaaa")) == 5

    def test_a_file_that_is_no_tokenizer(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
        with pytest.raises(ValueError, match="no usable tokenizer"):
            Tokeniser.load(tmp_path / "tokenizer.json")

    def test_one_vocabulary_is_loaded_once(self) -> None:
        """The folder of Qwen2.5-VL links to Qwen2-VL's vocabulary."""
        assert load_tokenizer(MODELS / "qwen2-vl/tokenizer.json") is load_tokenizer(
            MODELS / "qwen2.5-vl/tokenizer.json"
        )


def small(added: list[str | AddedToken]) -> Tokenizer:
    """A byte-level vocabulary of single bytes with added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) if isinstance(t, str) else t for t in added])
    return tokenizer
