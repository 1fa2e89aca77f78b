"""Every family beside an engine that serves it: what the agent's probes prove is what the layout stage then uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.media import MediaItem, MediaKind, MediaResolved
from schemas.worker import Limits, Worker
from services.engine_sim.config import SimConfig
from services.engine_sim.server import SimEngine
from services.kv.reason import Reason
from services.layout.card import ModelCard
from services.layout.contract import proof_of
from services.layout.lay_out import lay_out
from services.layout.layouter import Layouter
from services.layout.shapes import MediaShape
from services.worker.engine import Engine
from services.worker.model_layout import ModelLayout
from services.worker.probes import Subject, prove

MODELS = Path(__file__).parents[2] / "models"
FOLDERS = ["qwen3.5", "llava-1.5", "llava-next", "llama-4", "kimi-k2.5", "nemotron-3-nano-omni"]
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
LENGTH = 20_000


@pytest.mark.parametrize("name", FOLDERS)
async def test_images_are_exact_where_the_probes_matched(name: str) -> None:
    card = ModelCard.load(MODELS / name, "m")
    engine = SimEngine(SimConfig(MODELS / name, served_name="m", max_model_len=LENGTH), layouter=Layouter(card))
    await engine.start()
    try:
        async with Engine(engine.http_url) as asked:
            served = await asked.model()
            layout = ModelLayout(Layouter(card), card).under(served.max_model_len)
            subject = Subject("m", layout.card.variant, 16, layout.lays_images, layout.pixel_bound)
            contract = await prove(asked, layout.layouter, subject, None, 0)
    finally:
        await engine.stop()
    assert (contract.text.proven, contract.text.detail) == (True, None)
    assert (contract.image.proven, contract.image.variant) == (True, layout.card.variant), contract.image.detail
    worker = Worker(
        worker_id="w1", epoch=1, model="m", block_size=16, at_ms=0, contract=contract,
        limits=Limits(max_model_len=served.max_model_len),
    )  # fmt: skip
    media = [MediaItem(kind=MediaKind.IMAGE, message=0, part=0, identity=7, forward=True, height=900, width=1200)]
    resolved = MediaResolved(request_id="r", model="m", deadline_ms=9, created_at_ms=1, media=media, body="{}")
    body = {"messages": [{"role": "user", "content": [IMAGE, {"type": "text", "text": "What is it?"}]}]}
    proof = proof_of([worker], card.variant)
    expanded = lay_out(resolved, body, Layouter(card), proof, [16], model="m", lora=None)
    assert (expanded.reason, expanded.detail, len(expanded.spans)) == (None, None, 1)
    assert expanded.variant == layout.card.variant
    assert len(expanded.addresses[16]) == expanded.prompt_tokens // 16


def test_an_agent_that_does_not_learn_its_engines_length_proves_no_images_of_nemotron() -> None:
    card = ModelCard.load(MODELS / "nemotron-3-nano-omni", "m")
    silent = ModelLayout(Layouter(card), card).under(None)
    body = {"messages": [{"role": "user", "content": [IMAGE]}]}
    assert silent.layouter.view(body, [MediaShape(MediaKind.IMAGE, 100, 100)]).reason is Reason.CONTRACT_MISSING
