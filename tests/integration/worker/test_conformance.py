"""The conformance checks against an engine that conforms, and against ones that don't: they must notice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.cli.main import run
from services.engine_sim.config import SimConfig
from services.engine_sim.server import SimEngine
from services.layout.card import ModelCard
from services.layout.layouter import Layouter
from services.runtime.settings import Settings
from services.worker.conformance.open_bench import facts_of, open_suite
from services.worker.conformance.report import Check, Outcome, Report, markdown
from services.worker.conformance.suite import Limits

MODELS = Path(__file__).parents[2] / "models"


async def checked(
    model: str, tmp_path: Path, *, block_size: int = 16, restarts: bool = False, videos: str | None = None,
    change: Callable[[SimEngine], None] | None = None, event_seconds: float = 5.0, **options: Any,
) -> Report:  # fmt: skip
    """The report on a simulated engine of a small cache, whose layout of videos may be another than the newest."""
    card = ModelCard.load(MODELS / model)
    assert card.family is not None
    card = replace(card, family=card.family.chosen(video=videos))
    config = SimConfig(MODELS / model, block_size=block_size, num_blocks=160, speedup=1000.0, **options)
    async with SimEngine(config, layouter=Layouter(card)) as engine:

        async def restart() -> None:
            await engine.stop()
            await engine.start()

        settings = Settings(
            worker_engine_url=engine.http_url, worker_model_dir=MODELS / model, data_dir=tmp_path,
            video_forward_frames=(model,) if config.trust_request_mm_kwargs else (),
        )  # fmt: skip
        async with open_suite(settings) as suite:
            suite.limits = Limits(eviction_blocks=1000, restart=restart if restarts else None)
            suite.bench.event_seconds = event_seconds
            if change is not None:
                change(engine)
            return Report(facts_of(suite, settings, "0"), [check async for check in suite.run()])


def failed(report: Report) -> list[Check]:
    return [check for check in report.checks if check.outcome is Outcome.FAILED]


@pytest.mark.parametrize(("model", "block_size"), [("qwen2.5-vl", 16), ("qwen3-vl", 32)])
async def test_a_conforming_engine_passes_every_check(model: str, block_size: int, tmp_path: Path) -> None:
    report = await checked(model, tmp_path, block_size=block_size, restarts=True)
    assert not failed(report), markdown(report)
    names = {check.name for check in report.checks if check.outcome is Outcome.PASSED}
    assert names >= {
        "contract: text", "contract: image", "contract: video", "uuid of an image", "uuid of a video",
        "events: several turns", "events: two images", "events: video", "eviction", "replay from the beginning",
        "reset of the prefix cache", "restart of the engine",
    }, markdown(report)  # fmt: skip


@pytest.mark.parametrize(("model", "version"), [("qwen2.5-vl", "0.29.0"), ("qwen3-vl", "0.32.0")])
async def test_changed_names_and_frames_are_known_again(model: str, version: str, tmp_path: Path) -> None:
    report = await checked(
        model, tmp_path, version=version, trust_request_mm_kwargs=True,
        media_io_kwargs={"image": {"rgba_background_color": [0, 0, 0]}},
    )  # fmt: skip
    assert not failed(report), markdown(report)
    seen = {check.name: check.seen for check in report.checks if check.outcome is Outcome.PASSED}
    way = "known by tokens" if version == "0.29.0" else "known by session"
    assert (seen["uuid of an image"], seen["videos as frames"]) == (way, way)
    assert {"events: video as frames", "events: image, repeated", "events: image and video"} <= seen.keys()


async def test_what_cant_be_done_is_skipped_and_says_how_to_have_it_done(tmp_path: Path) -> None:
    report = await checked("qwen2.5-vl", tmp_path)
    (skipped,) = [check for check in report.checks if check.outcome is Outcome.SKIPPED]
    assert skipped.name == "restart of the engine"
    assert "--restart COMMAND" in skipped.seen
    assert report.passed


async def test_an_engine_that_gives_all_media_one_name_is_found_out(tmp_path: Path) -> None:
    def rename(engine: SimEngine) -> None:
        """One image alone may be known by any name: it takes a second one to see it."""
        expander: Any = engine.backend.expander
        plain = expander._identify
        expander._identify = lambda *given: [replace(item, identifier="f" * 64) for item in plain(*given)]

    report = await checked("qwen2.5-vl", tmp_path, change=rename, event_seconds=0.25)
    names = {check.name for check in failed(report)}
    assert {"events: image", "another image of the same size gets nothing of the first"} <= names


async def test_an_engine_with_an_older_layout_of_videos_is_told_by_the_probes(tmp_path: Path) -> None:
    report = await checked("qwen3-vl", tmp_path, videos="qwen3_vl/transformers-5.0")
    assert not failed(report), markdown(report)
    (video,) = [check for check in report.checks if check.name == "contract: video"]
    assert video.seen.startswith("qwen3_vl/transformers-5.0, ")


async def test_the_command_writes_a_report_and_ends_with_the_outcome(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = SimConfig(MODELS / "llava-1.5", num_blocks=160, speedup=1000.0)
    async with SimEngine(config) as engine:
        report = tmp_path / "report.md"
        command = ["conformance", "--url", engine.http_url, "--model-dir", str(config.model), "--report", str(report)]
        assert await asyncio.to_thread(run, [*command, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["passed"]
        assert {check["outcome"] for check in printed["checks"]} == {"passed", "skipped"}
        assert report.read_text().startswith("# Engine conformance: ")
        assert await asyncio.to_thread(run, [*command, "--table"]) == 0
        assert "events: two images" in capsys.readouterr().out


async def test_an_engine_that_does_not_answer_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["conformance", "--url", "http://127.0.0.1:9", "--model-dir", str(MODELS / "llava-1.5")]
    assert await asyncio.to_thread(run, command) != 0
    assert "http://127.0.0.1:9" in capsys.readouterr().err
