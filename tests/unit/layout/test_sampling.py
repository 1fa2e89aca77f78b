"""Which frames vLLM's loaders take, against the reference's tables and what it did with real files."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from services.kv.sampling import (
    UNKNOWN_RATE,
    Loader,
    Sampled,
    Sampling,
    Source,
    distinct,
    float32_steps,
    qwen2_vl,
    sample,
    taken,
    uniform,
)
from tests.unit.layout.golden import TESTS, golden


def sampling(loader: Loader, case: dict[str, Any]) -> Sampling:
    return Sampling.usual(loader, fps=case["target_fps"], num_frames=case["num_frames"])


@pytest.mark.parametrize("loader", Loader)
def test_the_loaders_tables(loader: Loader) -> None:
    for case in golden("bulk_video_sampling")[loader.value]:
        source = Source(case["total"], case["fps"])
        if "error" in case:
            with pytest.raises(ZeroDivisionError):
                taken(source, sampling(loader, case))
            continue
        indices = taken(source, sampling(loader, case))
        assert len(indices) == case["n"], case
        if "indices" in case:
            assert indices == case["indices"], case
            continue
        packed = json.dumps(indices, separators=(",", ":")).encode()
        assert (sum(indices), hashlib.sha256(packed).hexdigest()) == (case["sum"], case["sha256"]), case


@pytest.mark.parametrize("file", json.loads((TESTS / "golden/video_files/vllm_loader.json").read_text())["files"],
                         ids=lambda file: str(file["file"]))  # fmt: skip
@pytest.mark.parametrize("loader", Loader)
def test_real_files_as_the_loader_counted_them(loader: Loader, file: dict[str, Any]) -> None:
    found = file[loader.value]
    if "error" in found or file["file"] == "one_frame.webm":
        return  # nothing was counted or read: no rule says so, decoding finds out
    source = Source(found["total_num_frames"], found["fps"], found["duration"])
    indices = distinct(taken(source, Sampling.usual(loader)))
    assert indices == found["frames_indices"]
    assert (len(indices) == source.frames) is found["do_sample_frames"]


def test_a_source_without_a_rate() -> None:
    silent = Source(100, 0.0)
    assert sample(silent, Sampling.usual(Loader.QWEN3_VL)).fps == UNKNOWN_RATE
    with pytest.raises(ValueError, match="no frame rate"):
        sample(silent, Sampling.usual(Loader.QWEN2_VL))
    assert sample(silent, Sampling.usual(Loader.OPENCV)).indices == tuple(
        uniform(100, 0, Sampling.usual(Loader.OPENCV))
    )
    assert sample(silent, Sampling.usual(Loader.OPENCV, fps=2)).indices == (0,), "no seconds, one frame"


@pytest.mark.parametrize("loader", Loader)
def test_a_source_without_frames(loader: Loader) -> None:
    with pytest.raises(ValueError, match="0 frames"):
        sample(Source(0, 25.0), Sampling.usual(loader))


def test_a_single_frame() -> None:
    assert sample(Source(1, 24.0), Sampling.usual(Loader.QWEN3_VL)).indices == (0,)
    assert sample(Source(1, 24.0), Sampling.usual(Loader.OPENCV)).indices == (0,)
    with pytest.raises(ZeroDivisionError):
        sample(Source(1, 24.0), Sampling.usual(Loader.QWEN2_VL))


def test_a_clip_taken_whole_is_sampled_again_at_two_frames_a_second() -> None:
    whole = Sampling.usual(Loader.QWEN3_VL, fps=30)
    assert len(taken(Source(300, 30.0), whole)) == 300
    assert sample(Source(300, 30.0), whole) == sample(Source(300, 30.0), Sampling.usual(Loader.QWEN3_VL))
    assert len(sample(Source(301, 30.1), Sampling.usual(Loader.QWEN3_VL, fps=29)).indices) == 290, "not whole: stays"
    assert len(sample(Source(300, 30.0), Sampling.usual(Loader.QWEN2_VL, fps=30)).indices) == 300, "only Qwen3 does"


def test_the_last_step_may_overshoot_and_is_held_back() -> None:
    indices = qwen2_vl(451, 30.0, Sampling.usual(Loader.QWEN2_VL))
    assert indices[-1] <= 450
    assert len(qwen2_vl(899, 60.0, Sampling.usual(Loader.QWEN2_VL))) == 29, "one more than the even count"
    assert float32_steps(4, 1.0) == [0, 1, 2, 3]


def test_frames_stand_at_seconds_of_the_source() -> None:
    assert Sampled((0, 49), 25.0).seconds == [0.0, 1.96]
    assert Source(50, 25.0).seconds == 2.0
    assert Source(50, 25.0, duration=3.0).seconds == 3.0


@pytest.mark.parametrize("loader", [Loader.QWEN2_VL, Loader.QWEN3_VL])
def test_the_qwen_loaders_take_no_more_than_thirty_a_second(loader: Loader) -> None:
    source = Source(3151, 240.0)
    assert taken(source, Sampling.usual(loader, fps=60)) == taken(source, Sampling.usual(loader, fps=30))


def test_bounds_of_the_nemotron_card() -> None:
    card = Sampling.usual(Loader.OPENCV, fps=2, num_frames=256)
    assert len(sample(Source(300, 30.0), card).indices) == 20
    assert len(sample(Source(30000, 30.0), card).indices) == 256
    assert sample(Source(3, 24.0), card).indices == (0,)
