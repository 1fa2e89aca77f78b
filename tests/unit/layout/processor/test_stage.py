"""The layout stage with a processor beside it: exact where the workers proved the very same, else a reason."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from schemas.expanded import Expanded
from schemas.lifecycle import Lifecycle
from schemas.media import IdentitySource, MediaItem, MediaKind, MediaResolved
from schemas.worker import ModalityContract
from services.kv.address import Span, addresses
from services.kv.reason import Reason
from services.layout.app import build
from services.layout.card import ModelCard
from services.layout.processor.card import parameters_digest
from services.layout.processor.processes import Processes
from services.layout.processor.stage import Processing
from services.runtime.settings import Settings
from services.runtime.topics import EXPANDED, LIFECYCLE, MEDIA_RESOLVED, WORKERS
from tests.fakes.harness import Harness
from tests.unit.layout.golden import MODELS
from tests.unit.layout.processor import fake_processor as fake
from tests.unit.layout.workers import contract, worker

FOLDER = MODELS / "qwen2.5-vl"
VARIANT = f"processor/transformers-1.2.3/FakeProcessor-{parameters_digest(FOLDER)}"
IDENTITY = 0xABCDEF

Ask = Callable[..., Awaitable[Expanded]]


@pytest.fixture(scope="module")
def processes() -> Any:
    made = Processes(1, seconds=0.5, memory_bytes=1 << 30, remembered=100, describe=fake.describe, expand=fake.expand)
    made.describe(FOLDER)
    yield made
    made.close()


@pytest.fixture
async def stage(processes: Processes, tmp_path: Path) -> AsyncIterator[Harness]:
    settings = Settings(
        data_dir=tmp_path, layout="processor", models={"qwen": str(FOLDER), "fast": str(FOLDER)},
        layout_by_model={"fast": "native"},
    )  # fmt: skip
    harness = Harness("layout", settings)
    processing = Processing(settings, processes)
    build(settings, harness, processing=processing)  # type: ignore[arg-type]
    yield harness
    processing._threads.shutdown()


async def registers(stage: Harness, variant: str = VARIANT, model: str = "qwen", **image: Any) -> None:
    proven = ModalityContract(proven=True, variant=variant, verbatim_identity=True, **image)
    await stage.push(WORKERS, worker(f"w-{model}", model, contract=contract(model, image=proven)))


def picture(part: int, height: int, width: int) -> MediaItem:
    return MediaItem(
        kind=MediaKind.IMAGE, message=0, part=part, identity=IDENTITY, source=IdentitySource.URL, forward=True,
        height=height, width=width,
    )  # fmt: skip


async def asks(
    stage: Harness, *heights: int, width: int = 56, model: str = "qwen", seconds: float = 30
) -> Expanded:
    content: list[Any] = [{"type": "text", "text": "one two three four five six seven eight nine ten"}]
    content += [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}] * len(heights)
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    now = stage.clock.now_ms()
    resolved = MediaResolved(
        request_id=f"r{len(stage.sender.sent)}", model=model, body=orjson.dumps(body).decode(), created_at_ms=now,
        deadline_ms=now + int(seconds * 1000),
        media=[picture(part, height, width) for part, height in enumerate(heights, 1)],
    )  # fmt: skip
    await stage.push(MEDIA_RESOLVED, resolved)
    return stage.sender.messages(EXPANDED.name, Expanded)[-1]


async def test_what_the_workers_proved_is_exact(stage: Harness) -> None:
    await registers(stage)
    found = await asks(stage, 56, 28)
    assert (found.reason, found.variant, found.exact_tokens) == (None, VARIANT, found.prompt_tokens)
    assert [(span.item, span.length, span.identity) for span in found.spans] == [(0, 4, IDENTITY), (1, 2, IDENTITY)]
    assert found.vision_tokens == 6
    assert len(found.addresses[16]) == found.exact_tokens // 16


async def test_the_addresses_are_those_of_the_native_layout(stage: Harness) -> None:
    """The fake counts as Qwen2.5-VL does for this size."""
    await registers(stage)
    await registers(stage, "qwen2_5_vl", "fast")
    processed, native = await asks(stage, 56), await asks(stage, 56, model="fast")
    assert processed.addresses == native.addresses
    assert native.variant == "qwen2_5_vl"
    assert addresses([1] * 16, 16, [Span(0, 4, IDENTITY)]) != addresses([1] * 16, 16, [])


@pytest.mark.parametrize("variant", ["qwen2_5_vl", VARIANT.replace("1.2.3", "1.2.2"), VARIANT[:-1] + "x"])
async def test_what_they_proved_of_another_layout_is_not(stage: Harness, variant: str) -> None:
    await registers(stage, variant)
    found = await asks(stage, 56)
    assert (found.reason, found.spans) == (Reason.CONTRACT_MISMATCH, [])
    assert 0 < found.exact_tokens < found.prompt_tokens
    assert not found.media[0].forward


async def test_without_a_proof_there_is_the_text(stage: Harness) -> None:
    await stage.push(WORKERS, worker("w", contract=contract(image=ModalityContract())))
    found = await asks(stage, 56)
    assert found.reason is Reason.CONTRACT_MISSING
    assert found.exact_tokens > 0


async def test_exactness_ends_where_the_probes_ended(stage: Harness) -> None:
    await registers(stage, max_items=2, max_pixels=56 * 56)
    assert (await asks(stage, 56, 56)).reason is None
    found = await asks(stage, 56, 56, 56)
    assert (found.reason, len(found.spans)) == (Reason.CONTRACT_MISSING, 2)
    assert (await asks(stage, 84)).reason is Reason.CONTRACT_MISSING


@pytest.mark.parametrize(
    ("height", "reason"),
    [
        (fake.HANGS, Reason.BUDGET_EXCEEDED),
        (fake.DIES, Reason.BUDGET_EXCEEDED),
        (fake.FILLS_MEMORY, Reason.TOO_LARGE),
        (fake.REFUSES, Reason.UNSUPPORTED_MEDIA),
        (fake.NO_VISION, Reason.PLACEHOLDER_MISMATCH),
    ],
)
async def test_what_goes_wrong_in_the_process_costs_exactness_only(
    stage: Harness, height: int, reason: Reason
) -> None:
    await registers(stage)
    found = await asks(stage, height)
    assert (found.reason, found.spans) == (reason, [])
    assert found.exact_tokens > 0
    assert (await asks(stage, 56)).reason is None


async def test_a_deadline_that_passes_meanwhile_ends_the_request(stage: Harness) -> None:
    await registers(stage)
    with pytest.raises(IndexError):
        await asks(stage, fake.HANGS, width=112, seconds=0.1)
    (fact,) = stage.sender.messages(LIFECYCLE.name, Lifecycle)
    assert fact.status == 504


async def test_a_processor_that_cant_be_used_leaves_the_text(processes: Processes, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.symlink_to(FOLDER)
    settings = Settings(data_dir=tmp_path, layout="processor", models={"qwen": str(folder)})
    harness = Harness("layout", settings)
    processing = Processing(settings, processes)
    build(settings, harness, processing=processing)  # type: ignore[arg-type]
    await registers(harness)
    found = await asks(harness, 56)
    assert (found.reason, found.variant) == (Reason.CONTRACT_MISMATCH, "text")
    assert found.exact_tokens > 0
    dressed = processing.dress(ModelCard.load(folder, "qwen"))
    assert (dressed.family, dressed.media_reason) == (None, Reason.UNSUPPORTED_MODEL)
    assert "no processor here" in (dressed.media_detail or "")


async def test_the_end_of_the_stage_ends_the_processes(tmp_path: Path) -> None:
    harness = Harness("layout", Settings(data_dir=tmp_path, layout="processor"))
    build(harness.settings, harness)  # type: ignore[arg-type]
    await harness.start()
    await harness.stop()
