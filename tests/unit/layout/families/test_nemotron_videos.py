"""Nemotron's videos, structure for structure. The vectors' tokenizer is the model folder's stand-in: offsets compare.

Each variant of the vectors is a checkpoint with other values in ``vision_config``, or an engine with other flags.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.kv.reason import Reason
from services.kv.sampling import Loader, Sampling, Source, sample
from services.layout.families.nemotron import Frames, Nemotron
from services.layout.families.nemotron_videos import frame_seconds, separators
from tests.unit.layout.families.reading import (
    ARTEFACTS,
    clip,
    family_of,
    laid_out,
    media_runs,
    ranges,
    spans,
    tokens_of,
)
from tests.unit.layout.golden import golden

NAME = "nemotron_nano_omni"
DATA = golden("nemotron_nano_omni_video")
VARIANTS = sorted({case["variant"] for case in DATA["cases"]})


def nemotron(case: dict[str, Any]) -> Nemotron:
    """The layout of the checkpoint and the engine a vector was made with."""
    family = family_of(NAME)
    assert isinstance(family, Nemotron)
    frames = Frames(
        target=case["video_target_num_patches"],
        keep_aspect=case["video_maintain_aspect_ratio"],
        temporal=case["video_temporal_patch_size"],
    )
    return replace(family, frames=frames, pruning=case["video_pruning_rate"] or 0.0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_video(variant: str) -> None:
    for case in (case for case in DATA["cases"] if case["variant"] == variant):
        assert case["h"] not in ARTEFACTS
        where = (variant, case["total_frames"], case["h"], case["w"])
        source = Source(case["total_frames"], case["source_fps"], case["duration"])
        frames = sample(source, Sampling.usual(Loader.OPENCV, **case["media_io"]))
        assert list(frames.indices) == case["frame_indices"], where
        family = nemotron(case)
        view = laid_out(NAME, DATA["prompt"], [clip(case["h"], case["w"], frames.indices, frames.fps)], family)
        assert view.reason is None, where
        assert view.token_ids == tokens_of(NAME, case["structure"]), where
        assert spans(view) == ranges([case["placeholder"]]), where
        runs = media_runs(case["structure"], ["<image>"])
        assert view.vision_tokens == case["num_image_context_tokens"] == sum(count for _, count in runs), where
        if "tokens_per_tubelet" in case:
            assert family.tokens_per_group(case["h"], case["w"]) == case["tokens_per_tubelet"], where


def test_the_checkpoints_own_frames() -> None:
    family = family_of(NAME)
    assert isinstance(family, Nemotron)
    assert family.frames == Frames(target=1024, keep_aspect=True, temporal=2)
    assert family.pruning == 0, "video_pruning_rate of config.json is not the engine's flag"


def test_the_text_before_a_group() -> None:
    assert separators([0.0, 0.5, 1.0], 2) == [
        "Frame 1 sampled at 0.00 seconds and frame 2 sampled at 0.50 seconds: ",
        "\nFrame 3 sampled at 1.00 seconds: ",
    ]
    assert separators([0.0, 0.5], 1) == ["Frame 1 sampled at 0.00 seconds: ", "\nFrame 2 sampled at 0.50 seconds: "]


def test_a_frames_duration_is_truncated_to_milliseconds() -> None:
    assert frame_seconds([100], 29.97) == [3.3]


@pytest.mark.parametrize(("indices", "fps"), [([0, 1], 0.0), ([], 25.0), ([0], -1.0)])
def test_a_video_without_a_rate_or_frames_is_refused(indices: list[int], fps: float) -> None:
    view = laid_out(NAME, "<video>", [clip(64, 64, indices, fps)])
    assert (view.reason, view.exact_tokens) == (Reason.UNSUPPORTED_MEDIA, 0)
