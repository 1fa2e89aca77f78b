"""What vLLM's loaders make of files: against what the loaders themselves did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.media import MediaKind
from services.engine_sim.decode import decode_video
from services.engine_sim.errors import ApiError
from services.engine_sim.video import read_source
from services.kv.sampling import Loader, Sampling

GOLDEN = Path(__file__).parents[2] / "golden"
FILES = json.loads((GOLDEN / "video_files/vllm_loader.json").read_text())["files"]


@pytest.mark.parametrize("found", [found for found in FILES if "shape" in found["qwen3_vl"]], ids=lambda f: f["file"])
def test_files_have_the_loaders_numbers(found: dict[str, Any]) -> None:
    source = read_source((GOLDEN / "video_files" / found["file"]).read_bytes())
    expected = found["qwen3_vl"]
    assert (source.frames, source.fps) == (expected["total_num_frames"], expected["fps"])
    assert [source.height, source.width] == expected["shape"][1:3]


@pytest.mark.parametrize("loader", Loader)
@pytest.mark.parametrize("found", FILES, ids=lambda found: found["file"])
def test_files_are_sampled_or_refused_as_the_loaders_do(found: dict[str, Any], loader: Loader) -> None:
    data = (GOLDEN / "video_files" / found["file"]).read_bytes()
    expected = found[loader.value]
    # The uniform loader takes a frame of the file without a length, out of a negative number: that one is refused here.
    if "error" in expected or expected["total_num_frames"] < 0:
        with pytest.raises(ApiError):
            decode_video(data, Sampling.usual(loader))
        return
    shape = decode_video(data, Sampling.usual(loader))
    assert shape.kind is MediaKind.VIDEO
    if found["file"] == "one_frame.webm":
        # The loader reads no frame of it; here it has one, and the layout refuses clips of one frame.
        assert shape.frame_indices == (0,)
        return
    assert list(shape.frame_indices or ()) == expected["frames_indices"]
