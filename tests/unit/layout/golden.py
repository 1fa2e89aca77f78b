"""The reference vectors and model folders these tests read, each loaded once.

``tests/golden/layout``: what vLLM 0.32.0's processors (transformers 5.19.0 unless the name says another) made of images
and videos; ``tests/golden/vllm_events``: recordings of a running vLLM 0.32.0.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from services.layout.card import ModelCard
from services.layout.layouter import Layouter

TESTS = Path(__file__).parents[2]
MODELS = TESTS / "models"


@cache
def golden(name: str) -> Any:
    """A file of ``tests/golden/layout``."""
    return json.loads((TESTS / "golden" / "layout" / f"{name}.json").read_text())


@cache
def recording(name: str) -> Any:
    """A file of ``tests/golden/vllm_events``."""
    return json.loads((TESTS / "golden" / "vllm_events" / f"{name}.json").read_text())


@cache
def card(name: str) -> ModelCard:
    """The card of a folder of ``tests/models``."""
    return ModelCard.load(MODELS / name)


@cache
def layouter(name: str) -> Layouter:
    """A layouter that remembers pieces, as the stage's does."""
    return Layouter(card(name), cache_tokens=100_000)


def unrolled(rle: list[list[int]]) -> list[int]:
    """Token ids of a run-length encoded prompt."""
    return [token for token, count in rle for _ in range(count)]
