"""The layout stage with layouts asked from simulated engines: exact where their agents proved the very same."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from PIL import Image

from schemas.expanded import Expanded
from schemas.media import MediaItem, MediaKind, MediaResolved
from schemas.worker import Contract, ModalityContract, Worker
from services.engine_sim.config import SimConfig
from services.engine_sim.server import SimEngine
from services.kv.reason import Reason
from services.layout.app import build
from services.layout.card import ModelCard
from services.layout.cards import Cards
from services.layout.layouter import Layouter
from services.layout.shapes import MediaShape
from services.runtime.blobs import Blobs
from services.runtime.host_memory import HostMemory
from services.runtime.settings import Settings
from services.runtime.topics import EXPANDED, MEDIA_RESOLVED, WORKERS
from tests.fakes.harness import Harness

MODEL = Path(__file__).parents[2] / "models" / "qwen2.5-vl"
VARIANT = "render/vllm-0.32.0/00ff"
IDENTITIES = (0xABCDEF, 0xFEDCBA)


@dataclass
class Stage:
    harness: Harness
    engine: SimEngine
    layouter: Layouter

    async def registers(self, name: str = "w1", **fields: Any) -> None:
        """A worker whose agent proved that its engine renders what it runs."""
        proven = ModalityContract(proven=True, variant=VARIANT, verbatim_identity=True)
        contract = Contract(model="m", text=proven, image=fields.pop("image", proven))
        worker = Worker(
            worker_id=name, epoch=1, model="m", block_size=16, at_ms=0, contract=contract,
            engine_url=fields.pop("engine_url", self.engine.http_url), **fields,
        )  # fmt: skip
        await self.harness.push(WORKERS, worker)

    async def asks(self, *pictures: bytes, claimed: bool = False, **more: Any) -> Expanded:
        content: list[Any] = [{"type": "text", "text": "What is this?"}]
        media = []
        for part, (picture, identity) in enumerate(zip(pictures, IDENTITIES, strict=False), 1):
            uri = "data:image/png;base64," + base64.b64encode(picture).decode()
            url = "https://example.com/a.png" if claimed else uri
            content.append({"type": "image_url", "image_url": {"url": url}})
            claim = await Blobs.of(self.harness.settings).put(picture, "image/png") if claimed else None
            media.append(MediaItem(
                kind=MediaKind.IMAGE, message=0, part=part, identity=identity, forward=True, claim=claim,
            ))  # fmt: skip
        body = {"model": "m", "messages": [{"role": "user", "content": content}], "stream": True, **more}
        now = self.harness.clock.now_ms()
        resolved = MediaResolved(
            request_id=f"r{len(self.harness.sender.sent)}", model="m", body=orjson.dumps(body).decode(), media=media,
            created_at_ms=now, deadline_ms=now + 30_000,
        )  # fmt: skip
        await self.harness.push(MEDIA_RESOLVED, resolved)
        return self.harness.sender.messages(EXPANDED.name, Expanded)[-1]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    layouter = Layouter(ModelCard.load(MODEL, "m"))
    engine = SimEngine(SimConfig(MODEL, served_name="m"), layouter=layouter)
    await engine.start()
    harness = Harness("layout", Settings(data_dir=tmp_path, layout="render", render_seconds=5))
    # No model folder: the engine says it all.
    build(harness.settings, harness, cards=Cards({}))  # type: ignore[arg-type]
    yield Stage(harness, engine, layouter)
    await harness.stop()
    await engine.stop()


def png(height: int, width: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (9, 8, 7)).save(buffer, "PNG")
    return buffer.getvalue()


async def test_a_chat_is_laid_out_as_the_native_path_does_without_a_model_folder(stage: Stage) -> None:
    await stage.registers()
    found = await stage.asks(png(80, 112), png(300, 200))
    body = orjson.loads(found.body or "")
    shapes = [MediaShape(MediaKind.IMAGE, 80, 112), MediaShape(MediaKind.IMAGE, 300, 200)]
    native = stage.layouter.view(body, shapes)
    assert (found.reason, found.variant, found.exact_tokens) == (None, VARIANT, len(native.token_ids))
    assert [(s.offset, s.length, s.identity) for s in found.spans] == [
        (n.offset, n.length, identity) for n, identity in zip(native.spans, IDENTITIES, strict=True)
    ]
    assert len(found.addresses[16]) == found.exact_tokens // 16


async def test_the_bytes_of_a_claim_are_what_is_rendered(stage: Stage) -> None:
    await stage.registers()
    assert (await stage.asks(png(80, 112), claimed=True)).addresses == (await stage.asks(png(80, 112))).addresses


async def test_the_engine_learns_media_by_the_names_they_run_under(stage: Stage) -> None:
    await stage.registers()
    await stage.asks(png(80, 112))
    cache = stage.engine.backend.expander.processor_cache
    assert cache.get(f"{IDENTITIES[0]:016x}" + "0" * 48) is not None
    assert stage.engine.backend.executed == {}


async def test_a_worker_whose_agent_proved_another_path_is_not_asked(stage: Stage) -> None:
    proven = ModalityContract(proven=True, variant="qwen2_5_vl", verbatim_identity=True)
    worker = Worker(
        worker_id="w", epoch=1, model="m", block_size=16, at_ms=0, engine_url=stage.engine.http_url,
        contract=Contract(model="m", text=proven, image=proven),
    )  # fmt: skip
    await stage.harness.push(WORKERS, worker)
    found = await stage.asks(png(80, 112))
    assert (found.reason, found.exact_tokens) == (Reason.CONTRACT_MISMATCH, 0)


async def test_workers_that_render_differently_make_nothing_exact(stage: Stage) -> None:
    await stage.registers()
    await stage.registers("w2", image=ModalityContract(proven=True, variant=VARIANT + "0", verbatim_identity=True))
    found = await stage.asks(png(80, 112))
    assert (found.reason, found.spans) == (Reason.WORKERS_DISAGREE, [])
    assert found.exact_tokens > 0


async def test_a_dead_engine_is_passed_over(stage: Stage) -> None:
    await stage.registers("w1", engine_url="http://127.0.0.1:9")
    await stage.registers("w2")
    for _ in range(3):
        assert (await stage.asks(png(80, 112))).reason is None


async def test_without_any_the_request_goes_on_without_being_exact(stage: Stage) -> None:
    await stage.registers(engine_url="http://127.0.0.1:9")
    found = await stage.asks(png(80, 112))
    assert (found.reason, found.exact_tokens, found.addresses[16]) == (Reason.CONTRACT_MISSING, 0, [])
    assert found.prompt_tokens > 1000
    assert not found.media[0].forward


async def test_the_requests_own_arguments_and_prompts_are_not_exact(stage: Stage) -> None:
    await stage.registers()
    assert (await stage.asks(prompt_embeds="x")).reason is Reason.TEMPLATE_MISMATCH
    found = await stage.asks(png(80, 112), mm_processor_kwargs={"max_pixels": 10})
    assert found.reason is not None


async def test_a_rendering_is_left_for_an_agent_only_where_all_of_it_is_exact(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    settings = stage.harness.settings.model_copy(
        update={"render_handover_bytes": 1 << 20, "render_handover_dir": folder}
    )
    harness = stage.harness = Harness("layout", settings)
    build(settings, harness, cards=Cards({}))  # type: ignore[arg-type]
    await stage.registers()
    await stage.asks()
    await stage.asks(png(80, 112), mm_processor_kwargs={"max_pixels": 10})
    assert list(folder.iterdir()) == []
    found = await stage.asks(png(80, 112))
    memory = HostMemory.of(settings)
    assert memory is not None
    left = orjson.loads(memory.take(found.request_id) or b"{}")
    assert left["features"]["kwargs_data"]["image"]
    assert left["features"]["mm_hashes"]["image"] == [f"{IDENTITIES[0]:016x}" + "0" * 48]
    await harness.ticking["handover"]()
    await harness.stop()


async def test_text_alone(stage: Stage) -> None:
    await stage.registers()
    found = await stage.asks()
    assert (found.reason, found.exact_tokens) == (None, found.prompt_tokens)
