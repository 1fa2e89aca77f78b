"""Videos of the Qwen families from their numbers to the last token, as vLLM 0.32 has them.

Frames of height 1 or 3 are left out: the reference's loader takes them for channels-first pixels.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.kv.sampling import Loader, Sampled, Sampling, Source, distinct, sample, taken
from services.layout.families.qwen2_vl import Qwen2VL, video_grid
from services.layout.families.qwen3_vl import Qwen3VL, timestamp_text, timestamps
from services.layout.families.resize import AspectRatioError, smart_resize
from services.layout.shapes import MediaShape
from tests.unit.layout.families.reading import ARTEFACTS, clip, family_of, laid_out, ranges, spans, tokens_of
from tests.unit.layout.golden import golden, unrolled

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"]
GENERATIONS = {
    "5.24.0": "transformers-5.15",
    "5.14.1": "transformers-5.10",
    "5.9.0": "transformers-5.0",
    "4.57.6": "transformers-4.57",
}


def sampled(case: dict[str, Any], loader: Loader) -> Sampled:
    """The frames a model sees of a vector's video; what the loader took first is compared with the vector."""
    request = case.get("request") or {}
    if "indices" in request:
        return Sampled(tuple(request["indices"]), case["metadata_fps"])
    source = Source(case["total_frames"], case["source_fps"], case["duration"])
    sampling = Sampling.usual(loader, fps=request.get("fps"))
    found = sample(source, sampling)
    first = distinct(taken(source, sampling))
    assert case["frame_indices"] in (None, first), case
    assert len(first) == case["num_sampled_frames"]
    assert sum(first) == case.get("frame_indices_sum", sum(first))
    assert found.fps == case["metadata_fps"]
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_one_video(family: str) -> None:
    data = golden(f"{family}_video")
    loader = Loader.QWEN2_VL if family.startswith("qwen2") else Loader.QWEN3_VL
    cases = [case for case in data["cases"] if case["h"] not in ARTEFACTS]
    assert len(cases) >= 37
    for case in cases:
        if "error" in case and "frame_indices" not in case:
            with pytest.raises((ValueError, ZeroDivisionError)):
                sampled(case, loader)
            continue
        frames = sampled(case, loader)
        view = laid_out(family, data["prompt"], [clip(case["h"], case["w"], frames.indices, frames.fps)])
        where = (case["h"], case["w"], case["num_sampled_frames"])
        if "error" in case:
            assert view.reason is Reason.UNSUPPORTED_MEDIA, where
            continue
        assert len(view.token_ids) == case["prompt_len"], where
        if "rle" in case:
            assert view.token_ids == unrolled(case["rle"]), where
        elif "prompt_ids_sha256" in case:
            packed = json.dumps(view.token_ids, separators=(",", ":")).encode()
            assert hashlib.sha256(packed).hexdigest() == case["prompt_ids_sha256"], where
        assert spans(view) == ranges([case["placeholder"]]), where
        assert view.vision_tokens == case["placeholder"]["num_embeds"] == case["num_video_tokens"], where


def test_a_clip_that_was_taken_whole_is_sampled_again() -> None:
    (case,) = (case for case in golden("qwen3_vl_video")["cases"] if case.get("request") == {"fps": 30})
    frames = sampled(case, Loader.QWEN3_VL)
    assert (case["do_sample_frames"], case["num_sampled_frames"], len(frames.indices)) == (True, 300, 20)
    assert case["grid_thw"][0] == 10


@pytest.mark.parametrize("version", GENERATIONS)
def test_every_generation_of_transformers(version: str) -> None:
    data = golden(f"qwen3_vl_video_transformers_{version}")
    family = family_of("qwen3_vl").chosen(video=f"qwen3_vl/{GENERATIONS[version]}")
    for case in data["cases"]:
        if case["h"] in ARTEFACTS:
            continue
        shape = clip(case["h"], case["w"], case["frame_indices"], case["metadata_fps"])
        view = laid_out("qwen3_vl", data["prompt"], [shape], family)
        where = (case["h"], case["w"], case["num_sampled_frames"])
        if "error" in case:
            assert view.reason is Reason.UNSUPPORTED_MEDIA, where
            continue
        assert (view.reason, len(view.token_ids)) == (None, case["prompt_len"]), where
        assert view.vision_tokens == case["num_video_tokens"], where
        assert view.token_ids == tokens_of("qwen3_vl", case["structure"]), where


@pytest.mark.parametrize(
    "case", [c for c in golden("qwen_mixed_and_pruning")["cases"] if c["videos"]], ids=lambda case: str(case["tag"])
)
def test_several_media_expand_independently_and_in_order(case: dict[str, Any]) -> None:
    name = case["family"]
    family = family_of(name).overridden(case["mm_processor_kwargs"])
    rate = case["engine_args"].get("video_pruning_rate")
    if rate is not None:
        family = family.chosen(video=f"{family.video_variant}/evs-{rate}")
    images = [MediaShape(MediaKind.IMAGE, *size) for size in case["images_hw"]]
    videos = [clip(video["h"], video["w"], video["frame_indices"], video["fps"]) for video in case["videos"]]
    view = laid_out(name, case["prompt"], images + videos, family)
    assert (view.reason, view.token_ids) == (None, unrolled(case["rle"]))
    places = case["placeholders"].get("image", []) + case["placeholders"]["video"]
    assert spans(view) == ranges(places)


@pytest.mark.parametrize("generation", ["transformers-5.0", "transformers-4.57"])
def test_where_the_markers_are_replaced_too_they_have_to_be_there(generation: str) -> None:
    family = family_of("qwen3_vl").chosen(video=f"qwen3_vl/{generation}")
    shape = clip(64, 64, [0, 1], 2.0)
    whole = laid_out("qwen3_vl", "a<|vision_start|><|video_pad|><|vision_end|>b", [shape], family)
    assert (whole.reason, spans(whole)) == (None, [(1, 12)])
    bare = laid_out("qwen3_vl", "a<|video_pad|>b", [shape], family)
    assert (bare.reason, bare.exact_tokens, bare.spans) == (Reason.PLACEHOLDER_MISMATCH, 1, [])
    unknown = MediaShape(MediaKind.VIDEO, 64, 64)
    cut = laid_out("qwen3_vl", "a<|vision_start|><|video_pad|><|vision_end|>b", [unknown], family)
    assert (cut.reason, cut.exact_tokens) == (Reason.UNSUPPORTED_MEDIA, 1), "the start marker is not proven either"


def test_clips_resize_as_in_the_reference() -> None:
    data = golden("bulk_qwen_video_resize")["qwen3_video"]
    newest = family_of("qwen3_vl")
    older = newest.chosen(video="qwen3_vl/transformers-5.10")
    for frames, height, width, *expected in data["rows"]:
        where = (frames, height, width)
        assert _resized(newest, *where) == expected[:2], where
        assert _resized(older, *where) == expected[2:], where


def test_frames_resize_each_by_itself_before_qwen3() -> None:
    for height, width, *expected in golden("bulk_qwen_video_resize")["qwen2_video_per_frame"]["rows"]:
        for bounds, size in (((3136, 12845056), expected[:2]), ((100352, 602112), expected[2:])):
            found: list[int | None]
            try:
                found = [*smart_resize(height, width, 28, *bounds)]
            except AspectRatioError:
                found = [None, None]
            assert found == size, (height, width, bounds)


def test_a_clip_needs_frames() -> None:
    family = family_of("qwen2_vl")
    assert isinstance(family, Qwen2VL)
    with pytest.raises(ValueError, match="0 frames"):
        video_grid(0, 64, 64, family.video)
    newest = family_of("qwen3_vl")
    assert isinstance(newest, Qwen3VL)
    with pytest.raises(ValueError, match="1 frames, expected at least 2"):
        newest.grid(1, 64, 64)


def test_five_frames_count_as_four_and_seven_as_eight() -> None:
    family = family_of("qwen3_vl").overridden({"max_pixels": 6 * 320 * 320})
    assert isinstance(family, Qwen3VL)
    assert family.grid(5, 320, 320) == (3, 20, 20)
    assert family.grid(7, 320, 320)[1] < 20


def test_the_cap_bounds_each_frame() -> None:
    family = family_of("qwen3_vl").chosen(video="qwen3_vl/transformers-5.15/capped")
    assert isinstance(family, Qwen3VL)
    assert family.grid(13, 1376, 1408) == (7, 54, 56), "each frame has at most 768 * 32 * 32 pixels"
    assert family.grid(768, 1376, 1408) == family_of("qwen3_vl").grid(768, 1376, 1408), "the budget is under the cap"  # type: ignore[attr-defined]


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


def _resized(family: Any, frames: int, height: int, width: int) -> list[int | None]:
    try:
        _, rows, columns = family.grid(frames, height, width)
    except ValueError:
        return [None, None]
    return [16 * rows, 16 * columns]
