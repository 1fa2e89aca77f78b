"""The proof that the probes suffice: every two layouts of a model's videos are told apart by some probe."""

from __future__ import annotations

import io
from functools import cache
from itertools import combinations
from pathlib import Path

import av
import pytest

from schemas.media import MediaKind
from services.kv.sampling import Sampling
from services.layout.card import ModelCard
from services.layout.layouter import Layouter
from services.layout.view import View
from services.runtime.settings import Settings
from services.runtime.video_sampling import video_sampling
from services.worker.clips import Clip, mp4
from services.worker.matching import Answer, judge, within_bounds
from services.worker.probe_requests import Probe
from services.worker.probes import video_choices
from services.worker.video_probes import ALONE, LONG, SINGLE, VAST, shape_of, video_probes

MODELS = Path(__file__).parents[2] / "models"
RATES = (0.25, 0.3, 0.5, 0.7, 0.75)


def with_videos() -> list[str]:
    found = []
    for folder in sorted(MODELS.iterdir()):
        card = ModelCard.load(folder) if (folder / "config.json").is_file() else None
        if card is not None and rule_of(card) is not None and video_choices(card.family, ()):
            found.append(folder.name)
    return found


def rule_of(card: ModelCard) -> Sampling | None:
    return video_sampling(Settings(), card.name, card.model_type)


@cache
def views_of(model: str) -> tuple[list[Probe], dict[str, list[View]]]:
    """Each layout's view of each probe of one video."""
    card = ModelCard.load(MODELS / model)
    sampling = rule_of(card)
    assert sampling is not None
    layouter = Layouter(card)
    probes = video_probes(model, sampling, lambda clip: f"data:video/mp4;base64,{clip.name}", several=False)
    choices = video_choices(card.family, RATES)
    return probes, {
        name: [layouter.view(probe.body, probe.shapes, family=family) for probe in probes]
        for name, family in choices.items()
    }


def answered(probe: Probe, view: View) -> Answer:
    """What an engine with this layout says."""
    return Answer(probe, view.token_ids) if view.exact else Answer(probe, refusal="400: it can't be processed")


@pytest.mark.parametrize("model", with_videos())
def test_every_two_layouts_are_told_apart(model: str) -> None:
    probes, views = views_of(model)
    matrix = {
        (one, other): [
            probe.name
            for probe, ours, theirs in zip(probes, views[one], views[other], strict=True)
            if ours.exact != theirs.exact or (ours.exact and ours.token_ids != theirs.token_ids)
        ]
        for one, other in combinations(views, 2)
    }
    assert not [pair for pair, told_by in matrix.items() if not told_by]


@pytest.mark.parametrize("model", with_videos())
@pytest.mark.parametrize("refuses_the_vast", [False, True])
def test_an_engine_fits_its_own_layout_and_no_other(model: str, refuses_the_vast: bool) -> None:
    probes, views = views_of(model)
    for variant, seen in views.items():
        answers = [
            Answer(probe, refusal="400: too long") if refuses_the_vast and VAST.name in probe.name
            else answered(probe, view)
            for probe, view in zip(probes, seen, strict=True)
        ]  # fmt: skip
        kept, bounds = within_bounds(answers)
        rest = {
            name: [view for answer, view in zip(answers, each, strict=True) if answer in kept]
            for name, each in views.items()
        }
        assert judge(kept, rest).fitting == (variant,)
        assert (bounds.max_pixels is not None) == (refuses_the_vast and seen[-1].exact)


@pytest.mark.parametrize("model", with_videos())
def test_another_rate_of_sampling_is_noticed(model: str) -> None:
    """An engine that takes one frame a second fits no layout of ours that believes two."""
    card = ModelCard.load(MODELS / model)
    usual = rule_of(card)
    assert usual is not None
    other = Sampling.usual(usual.loader, fps=1.0, num_frames=usual.num_frames)
    assert shape_of(LONG, usual) != shape_of(LONG, other)


def test_a_clip_says_of_itself_what_it_is() -> None:
    for clip in (*ALONE[:-1], Clip(3, 32, 64, fps=7)):
        with av.open(io.BytesIO(mp4(clip))) as container:
            stream = container.streams.video[0]
            assert (stream.frames, stream.height, stream.width) == (clip.frames, clip.height, clip.width)
            assert stream.average_rate == clip.fps
            assert sum(1 for _ in container.decode(stream)) == clip.frames


def test_the_clips_are_small_files() -> None:
    assert max(len(mp4(clip)) for clip in ALONE) < 60_000


def test_a_video_the_loader_refuses_has_no_frames() -> None:
    single = shape_of(SINGLE, Sampling.usual(rule_loader("qwen2.5-vl")))
    assert (single.kind, single.frame_indices) == (MediaKind.VIDEO, None)


def rule_loader(model: str) -> object:
    rule = rule_of(ModelCard.load(MODELS / model))
    assert rule is not None
    return rule.loader
