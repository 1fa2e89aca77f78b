"""Text to token ids, remembering pieces: a repeated system prompt or conversation is tokenised once.

A rendered prompt is cut at the special tokens between its messages; each piece between is tokenised on its own and
kept. Long pieces are cut further, at a space between two ASCII letters, where that is known not to change the result.
The outcome is bit-equal to tokenising the whole text at once; vocabularies for which that can't be said for sure are
always given the whole.
"""

from __future__ import annotations

import json
import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

CHUNK = 2048
"""Characters after which a long piece is cut at the next safe place."""

ENTRY_COST = 24
"""What a remembered piece costs beside its own tokens, in tokens: key, links, array header."""

_INDEPENDENT_PRE_TOKENIZERS = {"Split", "ByteLevel", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"}
_INDEPENDENT_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTER_SPACE_SAFE = {
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""Patterns that end a word between an ASCII letter and a space before an ASCII letter, whatever stands around: no
alternative that takes a letter goes on over a space, and the next match starts at that space."""

_SAFE_CUT = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")


class Tokeniser:
    """Tokenises text of one model. Thread-safe; remembers pieces of up to ``cache_tokens`` tokens in all."""

    def __init__(self, tokenizer: Tokenizer, *, cache_tokens: int = 0) -> None:
        self._tokenizer = tokenizer
        self._cache_tokens = cache_tokens
        self._pieces: OrderedDict[str, array[int]] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()
        self._special = _cut_pattern(tokenizer)
        self._chunked = self._special is not None and _cuts_at_spaces(tokenizer)
        self._ids = {token: tokenizer.token_to_id(token) for token in _added_tokens(tokenizer)}
        self._longest = max(map(len, self._ids), default=0)

    @classmethod
    def load(cls, file: Path, *, cache_tokens: int = 0) -> Tokeniser:
        """From a ``tokenizer.json``. Vocabularies are shared within the process. Raises ValueError for a bad file."""
        return cls(load_tokenizer(file), cache_tokens=cache_tokens)

    @property
    def splits(self) -> bool:
        """Whether prompts are cut at special tokens. If not, every text is tokenised as a whole."""
        return self._special is not None

    @property
    def held_tokens(self) -> int:
        """Cost of what is remembered now, in tokens."""
        return self._held

    @property
    def size(self) -> int:
        """One more than the highest token id."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def token_id(self, token: str) -> int | None:
        """Id of a token, such as ``<|image_pad|>``, or None."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def text(self, token_id: int) -> str:
        """A token as text, for people."""
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False))

    def encode(self, text: str) -> list[int]:
        """Token ids of the text, no special tokens added. Raises ValueError for text that is not valid Unicode."""
        token_ids: array[int] = array("I")
        for piece, special in self.pieces(text):
            if special is None:
                token_ids.extend(self._piece(piece))
            else:
                token_ids.append(special)
        return token_ids.tolist()

    def pieces(self, text: str) -> Iterator[tuple[str, int | None]]:
        """The text cut at special tokens: each special with its id, and the text between with None."""
        if self._special is None:
            yield text, None
            return
        for index, piece in enumerate(self._special.split(text)):
            if index % 2:
                yield piece, self._ids[piece]
            elif piece:
                yield from self._chunks(piece)

    def settled(self, text: str) -> int:
        """Characters of a prompt's beginning whose tokens stay the same whatever follows: up to its last special token.

        0 where prompts can't be cut.
        """
        if self._special is None:
            return 0
        limit = len(text)
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            tail = text[start:]
            if any(token.startswith(tail) and token != tail for token in self._ids):
                limit = start
                break
        return max((match.end() for match in self._special.finditer(text) if match.end() <= limit), default=0)

    def _chunks(self, piece: str) -> Iterator[tuple[str, None]]:
        start = 0
        while self._chunked and len(piece) - start > CHUNK:
            cut = _SAFE_CUT.search(piece, start + CHUNK)
            if cut is None:
                break
            yield piece[start : cut.start()], None
            start = cut.start()
        yield (piece[start:] if start else piece), None

    def _piece(self, piece: str) -> array[int]:
        if not self._cache_tokens:
            return self._tokenise(piece)
        with self._lock:
            known = self._pieces.get(piece)
            if known is not None:
                self._pieces.move_to_end(piece)
                return known
        token_ids = self._tokenise(piece)
        self._remember(piece, token_ids)
        return token_ids

    def _tokenise(self, piece: str) -> array[int]:
        try:
            return array("I", self._tokenizer.encode(piece, add_special_tokens=False).ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise ValueError(f"the text is not valid Unicode: {error}") from None

    def _remember(self, piece: str, token_ids: array[int]) -> None:
        cost = len(token_ids) + ENTRY_COST
        if cost > self._cache_tokens:
            return
        with self._lock:
            if piece in self._pieces:
                return
            self._pieces[piece] = token_ids
            self._held += cost
            while self._held > self._cache_tokens:
                _, oldest = self._pieces.popitem(last=False)
                self._held -= len(oldest) + ENTRY_COST


def load_tokenizer(file: Path) -> Tokenizer:
    """The vocabulary of a ``tokenizer.json``, loaded once in a process. Raises ValueError for a bad file."""
    real = file.resolve()
    stat = real.stat()
    return _load(str(real), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=16)
def _load(file: str, mtime_ns: int, size: int) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(file)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{file} is no usable tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _added_tokens(tokenizer: Tokenizer) -> list[str]:
    return [token.content for token in tokenizer.get_added_tokens_decoder().values()]


def _cut_pattern(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """A pattern that finds the special tokens as the library does, or None where cutting might change the result.

    The library first takes out the tokens that aren't normalised, leftmost and longest first, then works on each
    text between them by itself. That is only so simple without the strip and word flags, and if neither normaliser
    nor pre-tokeniser look at where in the prompt a piece stands.
    """
    tokens = [token for token in tokenizer.get_added_tokens_decoder().values() if not token.normalized]
    if any(token.lstrip or token.rstrip or token.single_word or not token.content for token in tokens):
        return None
    if tokenizer.encode_special_tokens or getattr(tokenizer.model, "dropout", None):
        return None
    if not _independent(_state(tokenizer.pre_tokenizer), "pretokenizers", _INDEPENDENT_PRE_TOKENIZERS):
        return None
    if tokenizer.normalizer is not None and not _independent(
        _state(tokenizer.normalizer), "normalizers", _INDEPENDENT_NORMALIZERS
    ):
        return None
    longest_first = sorted((token.content for token in tokens), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None


def _cuts_at_spaces(tokenizer: Tokenizer) -> bool:
    """Whether long pieces may be cut between a letter and a space: a known pattern, NFC, and no added words."""
    if _state(tokenizer.normalizer) not in ({"type": "NFC"}, {}):
        return False
    if any(token.normalized for token in tokenizer.get_added_tokens_decoder().values()):
        return False
    steps = _state(tokenizer.pre_tokenizer).get("pretokenizers") or []
    if len(steps) != 2 or steps[0].get("type") != "Split" or steps[1].get("type") != "ByteLevel":
        return False
    pattern = (steps[0].get("pattern") or {}).get("Regex")
    split_ok = pattern in _LETTER_SPACE_SAFE and steps[0].get("behavior") == "Isolated" and not steps[0].get("invert")
    return split_ok and not steps[1].get("add_prefix_space") and not steps[1].get("use_regex")


def _state(component: Any) -> dict[str, Any]:
    return {} if component is None else json.loads(component.__getstate__())


def _independent(state: dict[str, Any], steps: str, allowed: set[str]) -> bool:
    kind = state.get("type")
    if kind == "Sequence":
        return all(_independent(step, steps, allowed) for step in state.get(steps, []))
    return kind in allowed and not state.get("add_prefix_space")
