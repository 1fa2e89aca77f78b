"""When an engine is probed, and when what it said before still counts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from services.layout.card import CardError, ModelCard
from services.layout.layouter import Layouter
from services.runtime.logs import get_logger
from services.runtime.settings import Settings
from services.worker.engine import Engine, EngineError
from services.worker.kinds import Vllm
from services.worker.life import EngineFacts
from services.worker.model_layout import ModelLayout
from services.worker.proving import Proving
from tests.unit.worker.foreign_engines import shapes_of

MODEL = Path(__file__).parents[2] / "models" / "llava-1.5"
FACTS = EngineFacts("m", (), "0.32.0", 16, started_at=1_000.5)


class Asked:
    """An engine that lays out as the card says, and counts what it is asked."""

    url = "http://engine"

    def __init__(self, layouter: Layouter) -> None:
        self.layouter = layouter
        self.times = 0
        self.broken = False

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        self.times += 1
        if self.broken:
            raise EngineError(400, "no")
        return self.layouter.view(body, shapes_of(body)).token_ids

    async def complete(self, body: dict[str, Any], headers: Any = None) -> dict[str, Any]:
        return {}


class SeesAll:
    def expect(self, identity: int) -> None:
        pass

    async def saw(self, identity: int, expected: Sequence[int], seconds: float) -> tuple[bool, bool]:
        return True, True

    async def holds(self, expected: Sequence[int], seconds: float) -> bool:
        return True


@pytest.fixture(scope="module")
def layout() -> ModelLayout:
    card = ModelCard.load(MODEL, "m")
    return ModelLayout(Layouter(card), card)


class Stand:
    def __init__(self, layout: ModelLayout, folder: Path) -> None:
        self.layout = layout
        self.engine = Asked(layout.layouter)
        self.settings = Settings(worker_id="w1", data_dir=folder)

    async def asked(self, facts: EngineFacts = FACTS) -> int:
        """How often a new agent beside this engine asks it."""
        before = self.engine.times
        proving = Proving(
            self.settings, Vllm(self.settings), cast(Engine, self.engine), random.Random(1), get_logger("test")
        )
        await proving.contract(facts, self.layout, SeesAll())
        return self.engine.times - before


@pytest.fixture
def stand(layout: ModelLayout, tmp_path: Path) -> Stand:
    return Stand(layout, tmp_path)


async def test_the_same_process_is_asked_once(stand: Stand) -> None:
    assert await stand.asked() > 5
    assert await stand.asked() == 0


async def test_a_restarted_or_another_engine_is_asked_anew(stand: Stand) -> None:
    first = await stand.asked()
    assert await stand.asked(replace(FACTS, started_at=2_000.0)) == first
    assert await stand.asked(replace(FACTS, version="0.33.0")) == first
    assert await stand.asked(replace(FACTS, block_size=32)) == first


async def test_an_engine_that_does_not_say_when_it_started_is_always_asked(stand: Stand) -> None:
    unknown = replace(FACTS, started_at=None)
    assert await stand.asked(unknown) == await stand.asked(unknown) > 5


async def test_what_was_not_proven_is_asked_again(stand: Stand) -> None:
    stand.engine.broken = True
    await stand.asked()
    stand.engine.broken = False
    assert await stand.asked() > 5


async def test_a_model_without_a_layout_proves_nothing_and_says_why(stand: Stand) -> None:
    proving = Proving(
        stand.settings, Vllm(stand.settings), cast(Engine, stand.engine), random.Random(1), get_logger("test")
    )
    contract = await proving.contract(FACTS, CardError("no model folder for m"), None)
    assert not contract.text.proven
    assert contract.image.detail == "no model folder for m"
