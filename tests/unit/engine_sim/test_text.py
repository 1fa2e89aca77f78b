"""What the simulated model says."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from services.engine_sim.text import Detokenizer, Filler
from services.layout.tokenise import load_tokenizer
from tests.unit.engine_sim.engine import prompt, request, run, scheduler

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(MODELS / "llava-1.5" / "tokenizer.json")


def say(tokenizer: Tokenizer, token_ids: list[int], tokens: int, seed: int = 0) -> list[int]:
    engine, asked = scheduler(), request(token_ids, max_tokens=tokens)
    engine.sampler = Filler(tokenizer, seed)
    run(engine, asked)
    return asked.output_ids


def test_it_says_numbered_tokens_in_order(tokenizer: Tokenizer) -> None:
    words = tokenizer.decode(say(tokenizer, prompt(0, 9), 80)).split()
    numbers = [int(word) for word in words[1:-2:2]]
    assert set(words[0:-2:2]) == {"token"}
    assert numbers == [(numbers[0] + step) % 2000 for step in range(len(numbers))]


def test_the_same_prompt_gets_the_same_answer_and_another_end_another(tokenizer: Tokenizer) -> None:
    assert say(tokenizer, prompt(0, 60), 20) == say(tokenizer, [*prompt(500, 28), *prompt(28, 32)], 20)
    assert say(tokenizer, prompt(0, 60), 20) != say(tokenizer, prompt(0, 61), 20)
    assert say(tokenizer, prompt(0, 60), 20) != say(tokenizer, prompt(0, 60), 20, seed=1)


def test_an_answer_sent_back_has_the_tokens_it_was_made_of(tokenizer: Tokenizer) -> None:
    said = say(tokenizer, prompt(0, 9), 48)
    assert tokenizer.encode(tokenizer.decode(said), add_special_tokens=False).ids == said


def test_pieces_add_up_to_the_whole_text(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("größer 漢字 🙂 end", add_special_tokens=False).ids
    feed = Detokenizer(tokenizer).feed
    assert "".join(feed([token_id]) for token_id in token_ids) == tokenizer.decode(token_ids)
