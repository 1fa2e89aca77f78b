"""Which frames vLLM's loaders take, and what they make of files: against what the loaders themselves did."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from schemas.media import MediaKind
from services.engine_sim.decode import VideoLoader, decode_video
from services.engine_sim.errors import ApiError
from services.engine_sim.video import read_source, sample_qwen2, sample_qwen3

GOLDEN = Path(__file__).parents[2] / "golden"
SAMPLING = json.loads((GOLDEN / "layout/bulk_video_sampling.json").read_text())
FILES = json.loads((GOLDEN / "video_files/vllm_loader.json").read_text())["files"]


def agrees(indices: list[int], case: dict[str, Any]) -> bool:
    if "indices" in case:
        return bool(indices == case["indices"])
    compact = json.dumps(indices, separators=(",", ":")).encode()
    return bool(hashlib.sha256(compact).hexdigest() == case["sha256"])


@pytest.mark.parametrize(("name", "sample"), [("qwen3_vl", sample_qwen3), ("qwen2_vl", sample_qwen2)])
def test_sampling_is_the_loaders(name: str, sample: Any) -> None:
    cases = [case for case in SAMPLING[name] if "error" not in case]
    assert len(cases) > 200
    wrong = [case for case in cases if not agrees(sample(case["total"], case["fps"] or 24.0, case["target_fps"]), case)]
    assert wrong == []


def test_a_clip_the_loader_divides_by_zero_for_is_refused() -> None:
    refused = [case for case in SAMPLING["qwen2_vl"] if "error" in case]
    assert refused
    for case in refused:
        with pytest.raises(ValueError, match=r"expected at least 2|no frame rate"):
            sample_qwen2(case["total"], case["fps"], case["target_fps"])


@pytest.mark.parametrize("found", [found for found in FILES if "shape" in found["qwen3_vl"]], ids=lambda f: f["file"])
def test_files_have_the_loaders_numbers(found: dict[str, Any]) -> None:
    source = read_source((GOLDEN / "video_files" / found["file"]).read_bytes())
    expected = found["qwen3_vl"]
    assert (source.frames, source.fps) == (expected["total_num_frames"], expected["fps"])
    assert [source.height, source.width] == expected["shape"][1:3]


@pytest.mark.parametrize("loader", ["qwen2_vl", "qwen3_vl"])
@pytest.mark.parametrize("found", FILES, ids=lambda found: found["file"])
def test_files_are_sampled_or_refused_as_the_loaders_do(found: dict[str, Any], loader: VideoLoader) -> None:
    data = (GOLDEN / "video_files" / found["file"]).read_bytes()
    expected = found[loader]
    if "error" in expected:
        with pytest.raises(ApiError):
            decode_video(data, loader)
        return
    shape = decode_video(data, loader)
    assert shape.kind is MediaKind.VIDEO
    if found["file"] == "one_frame.webm":
        # The loader reads no frame of it; here it has one, and the layout refuses clips of one frame.
        assert shape.frame_indices == (0,)
        return
    assert list(shape.frame_indices or ()) == expected["frames_indices"]
