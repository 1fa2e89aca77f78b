"""Layouts of sampled clips, token for token, as vLLM 0.32 with transformers >= 5.15 has them.

Frames of height 1 or 3 are left out: the reference's loader takes them for channels-first pixels. Sampling is not the
layout's: the frame indices are the reference's own.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.expansion import expand
from services.layout.families.qwen3_vl import timestamp_text, timestamps
from services.layout.shapes import MediaShape
from services.layout.view import View
from tests.unit.layout.golden import golden, layouter, unrolled
from tests.unit.layout.test_qwen_images import FOLDERS, _family, _ranges

ARTEFACTS = (1, 3)
FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"]


def _clip(height: int, width: int, indices: list[int], fps: float) -> MediaShape:
    return MediaShape(MediaKind.VIDEO, height, width, frame_indices=tuple(indices), fps=fps)


def _view(family: str, prompt: str, media: list[MediaShape], kwargs: dict[str, Any] | None = None) -> View:
    model = layouter(FOLDERS[family])
    return expand(model.encode(prompt), media, _family(family).overridden(kwargs or {}), model.encode)


def _usable(case: dict[str, Any]) -> bool:
    return case["h"] not in ARTEFACTS and case.get("do_sample_frames") is False


def _indices(case: dict[str, Any]) -> list[int]:
    """The sampled frames; of long clips the vectors keep the sum, so they are made by the loaders' rules."""
    if case["frame_indices"] is not None:
        return list(case["frame_indices"])
    count, total = case["num_sampled_frames"], case["total_frames"]
    even = [round(index * ((total - 1) / (count - 1))) for index in range(count)]
    steps = [index * total // count for index in range(count)]
    return next(indices for indices in (even, steps) if sum(indices) == case["frame_indices_sum"])


@pytest.mark.parametrize("family", FAMILIES)
def test_one_video(family: str) -> None:
    data = golden(f"{family}_video")
    cases = [case for case in data["cases"] if _usable(case)]
    assert len(cases) > 20
    for case in cases:
        where = (case["h"], case["w"], case["num_sampled_frames"])
        shape = _clip(case["h"], case["w"], _indices(case), case["metadata_fps"])
        view = _view(family, data["prompt"], [shape])
        if "error" in case:
            assert view.reason is Reason.UNSUPPORTED_MEDIA, where
            continue
        if "rle" in case:
            assert view.token_ids == unrolled(case["rle"]), where
        else:
            packed = json.dumps(view.token_ids, separators=(",", ":")).encode()
            assert hashlib.sha256(packed).hexdigest() == case["prompt_ids_sha256"], where
        (span,) = view.spans
        assert (span.offset, span.length) == (case["placeholder"]["offset"], case["placeholder"]["length"]), where
        assert span.vision_tokens == case["placeholder"]["num_embeds"], where


def test_the_newest_transformers_lays_out_the_same() -> None:
    data = golden("qwen3_vl_video_transformers_5.24.0")
    for case in data["cases"]:
        if not _usable(case) or "error" in case:
            continue
        shape = _clip(case["h"], case["w"], case["frame_indices"], case["metadata_fps"])
        view = _view("qwen3_vl", data["prompt"], [shape])
        assert len(view.token_ids) == case["prompt_len"], (case["h"], case["w"])
        assert view.vision_tokens == case["num_video_tokens"], (case["h"], case["w"])


@pytest.mark.parametrize(
    "case",
    [c for c in golden("qwen_mixed_and_pruning")["cases"] if c["videos"] and not c["engine_args"]],
    ids=lambda case: str(case["tag"]),
)
def test_several_media_expand_independently_and_in_order(case: dict[str, Any]) -> None:
    images = [MediaShape(MediaKind.IMAGE, *size) for size in case["images_hw"]]
    videos = [_clip(v["h"], v["w"], v["frame_indices"], v["fps"]) for v in case["videos"]]
    view = _view(case["family"], case["prompt"], images + videos, case["mm_processor_kwargs"])
    assert view.token_ids == unrolled(case["rle"])
    found = [(span.offset, span.length) for span in sorted(view.spans, key=lambda span: span.item)]
    assert found == _ranges(case["placeholders"].get("image", [])) + _ranges(case["placeholders"]["video"])


def test_timestamps_of_pairs() -> None:
    for fps, indices, stamps, texts in golden("bulk_qwen3_timestamps")["rows"]:
        assert timestamps(indices, fps) == stamps
        assert [timestamp_text(stamp) for stamp in stamps] == texts


def test_timestamps_need_frames_and_a_rate() -> None:
    for indices, fps in (([], 25.0), ([0], 0.0), ([0], -1.0)):
        with pytest.raises(ValueError, match="no timestamps"):
            timestamps(indices, fps)


def test_stamps_round_exact_ties_to_even() -> None:
    assert [timestamp_text(seconds) for seconds in (0.25, 0.75)] == ["<0.2 seconds>", "<0.8 seconds>"]
