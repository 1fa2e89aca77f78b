"""Laying out a chat with images, beside tokenising its text with the bare library."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.load import WORDS
from benchmarks.measure import Row, alternate, microseconds_of
from schemas.media import MediaKind
from services.layout.card import ModelCard
from services.layout.layouter import Layouter
from services.layout.shapes import MediaShape
from services.layout.tokenise import load_tokenizer

MODEL = Path(__file__).resolve().parents[1] / "tests" / "models" / "qwen2.5-vl"
TURNS = 4
TOKENS = 2048
IMAGES = 3
RUNS = 15
CACHE_TOKENS = 1_000_000


def rows() -> Iterator[Row]:
    """A chat seen for the first time, and one seen before."""
    card = ModelCard.load(MODEL)
    tokenizer = load_tokenizer(card.tokenizer_file)
    shapes = [MediaShape(MediaKind.IMAGE, 480, 640)] * IMAGES
    source = random.Random(5)
    layouter = Layouter(card, cache_tokens=CACHE_TOKENS)
    again = chat(source)
    chats: list[dict[str, Any]] = [again]

    def cold() -> float:
        chats.append(chat(source))
        return microseconds_of(partial(layouter.view, chats[-1], shapes), at_least=0)

    def tokenise() -> float:
        return microseconds_of(partial(tokenizer.encode, text_of(chats[-1]), add_special_tokens=False), at_least=0)

    def warm() -> float:
        return microseconds_of(partial(layouter.view, again, shapes))

    case = f"layout of {TOKENS:,} tokens of text and {IMAGES} images"
    for name, work in ((f"{case}, new text", cold), (f"{case}, text seen before", warm)):
        value, floor = alternate(work, tokenise, runs=RUNS)
        yield Row(name, "µs", value, floor, "tokenising its text")


def chat(source: random.Random) -> dict[str, Any]:
    """A conversation of new words with images in its first turn."""
    messages: list[dict[str, Any]] = []
    for turn in range(TURNS):
        text = " ".join(source.choices(WORDS, k=TOKENS // TURNS))
        images = [{"type": "image_url", "image_url": {"url": "https://example.com/x.png"}}] * (0 if turn else IMAGES)
        content = [*images, {"type": "text", "text": text}]
        messages.append({"role": "assistant" if turn % 2 else "user", "content": content if images else text})
    return {"model": "m", "messages": messages}


def text_of(body: dict[str, Any]) -> str:
    """All words of a chat."""
    parts = (message["content"] for message in body["messages"])
    return " ".join(part if isinstance(part, str) else part[-1]["text"] for part in parts)
