"""What the simulated model says: deterministic filler, in the model's own tokens."""

from __future__ import annotations

from array import array
from bisect import bisect_left

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from xxhash import xxh3_64_intdigest

from services.engine_sim.request import EngineRequest

WORDS = 2000

TAIL = 32
"""Tokens at the end of a prompt that decide what is said: past the template's own, into the question."""


class Filler:
    """A sampler that says "token 17 token 18 …", starting at a word the prompt decides.

    The text is tokenised once as a whole, so that an answer sent back in a conversation has the same token ids.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int = 0) -> None:
        text, starts = "", []
        for word in range(WORDS):
            starts.append(len(text))
            text += f" token {word}"
        encoding = tokenizer.encode(text, add_special_tokens=False)
        begins = [begin for begin, _ in encoding.offsets]
        self._ids: list[int] = encoding.ids
        self._starts = sorted({min(bisect_left(begins, start), len(begins) - 1) for start in starts})
        self._seed = seed

    def __call__(self, request: EngineRequest) -> int:
        """The next token id of the request."""
        return self._ids[(self._start(request) + request.output_tokens) % len(self._ids)]

    def _start(self, request: EngineRequest) -> int:
        tail = request.token_ids[max(0, request.prompt_tokens - TAIL) : request.prompt_tokens]
        return self._starts[xxh3_64_intdigest(array("I", tail).tobytes(), self._seed) % len(self._starts)]


class Detokenizer:
    """Turns one request's generated ids into text, piece by piece."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def feed(self, token_ids: list[int]) -> str:
        """The text these tokens add; a character that needs more tokens comes with the last of them."""
        return "".join(self._stream.step(self._tokenizer, token_id) or "" for token_id in token_ids)
