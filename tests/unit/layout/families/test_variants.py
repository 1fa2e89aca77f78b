"""Names of layout variants: what a family has, what a contract picks, and what it can't."""

from __future__ import annotations

import pytest

from schemas.media import MediaKind
from services.layout.families.nemotron import Nemotron
from services.layout.families.qwen3_vl import Qwen3VL
from services.layout.families.variants import UnknownVariant, family_of, pruning_part
from tests.unit.layout.families.reading import FOLDERS
from tests.unit.layout.families.reading import family_of as layout_of

RATES = (0.5, 0.75)
VIDEOS = {
    "qwen2_vl": ("qwen2_vl",),
    "qwen2_5_vl": ("qwen2_5_vl", "qwen2_5_vl/evs-0.5", "qwen2_5_vl/evs-0.75"),
    "qwen3_5": tuple(
        f"qwen3_5/{generation}{pruning}"
        for generation in (
            "transformers-5.15",
            "transformers-5.10",
            "transformers-5.0",
            "transformers-4.57",
            "transformers-5.15/capped",
        )
        for pruning in ("", "/evs-0.5", "/evs-0.75")
    ),
    "llava_1_5": (),
    "llava_next": (),
    "llama4": (),
    "kimi_k25": (),
    "nemotron_nano_omni": ("nemotron_nano_omni", "nemotron_nano_omni/evs-0.5", "nemotron_nano_omni/evs-0.75"),
}


@pytest.mark.parametrize("name", VIDEOS)
def test_every_variant_of_videos_can_be_chosen_by_its_name(name: str) -> None:
    family = layout_of(name)
    assert family.video_variants(RATES) == VIDEOS[name]
    for variant in family.video_variants(RATES):
        chosen = family.chosen(video=variant)
        assert chosen.video_variant == variant
        assert chosen.chosen(video=family.video_variant) == family


@pytest.mark.parametrize("name", FOLDERS)
def test_the_layout_a_folder_has_is_one_of_its_variants(name: str) -> None:
    family = layout_of(name)
    assert family.chosen(image=family.variant) == family
    assert family.chosen() == family
    assert family.video_variant in family.video_variants() or not family.video_variants()
    assert (family.video_variant == "") is (family.placeholder(MediaKind.VIDEO) is None)
    assert family_of(family.variant) == family_of(family.video_variant or family.variant)


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("wrong", ["", "something", "qwen9/transformers-5.15", "nemotron_nano_omni/len-x", "evs-0.5"])
def test_other_families_layouts_are_refused(name: str, wrong: str) -> None:
    with pytest.raises(UnknownVariant):
        layout_of(name).chosen(image=wrong)
    if wrong:
        with pytest.raises(UnknownVariant):
            layout_of(name).chosen(video=wrong)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("qwen3_vl", "qwen3_vl"),
        ("qwen3_vl", "qwen3_vl/transformers-6.0"),
        ("qwen3_vl", "qwen3_vl/evs-0.5"),
        ("qwen3_vl", "qwen3_vl/transformers-5.10/capped"),
        ("qwen3_vl", "qwen3_vl/transformers-5.15/evs-0.5/capped"),
        ("qwen3_vl", "qwen3_vl/transformers-5.15/evs-0.50"),
        ("qwen3_vl", "qwen3_vl/transformers-5.15/evs-1.0"),
        ("qwen3_vl", "qwen3_vl/transformers-5.15/evs-nan"),
        ("qwen3_vl", "qwen3_vl_moe/transformers-5.15"),
        ("qwen2_vl", "qwen2_vl/evs-0.5"),
        ("qwen2_5_vl", "qwen2_5_vl/evs-0"),
        ("qwen2_5_vl", "qwen2_5_vl/evs-0.5/evs-0.5"),
        ("nemotron_nano_omni", "nemotron_nano_omni/len-4096"),
        ("nemotron_nano_omni", "nemotron_nano_omni/x/evs-0.5"),
    ],
)
def test_names_that_are_nearly_right_are_refused(name: str, wrong: str) -> None:
    with pytest.raises(UnknownVariant):
        layout_of(name).chosen(video=wrong)


def test_an_engines_length_is_part_of_nemotrons_layout_of_images() -> None:
    family = layout_of("nemotron_nano_omni")
    assert isinstance(family, Nemotron)
    assert family.variant == "nemotron_nano_omni/len-262144", "what the model takes, unless the engine says otherwise"
    assert family.under(4096).variant == "nemotron_nano_omni/len-4096"
    assert family.under(None).variant == "nemotron_nano_omni"
    assert family.chosen(image="nemotron_nano_omni/len-4096") == family.under(4096)
    assert family.chosen(image="nemotron_nano_omni") == family.under(None)
    for wrong in ("nemotron_nano_omni/4096", "nemotron_nano_omni/len-04096", "nemotron_nano_omni/len-1/evs-0.5"):
        with pytest.raises(UnknownVariant):
            family.chosen(image=wrong)


@pytest.mark.parametrize("name", [name for name in FOLDERS if name != "nemotron_nano_omni"])
def test_no_other_layout_depends_on_the_engines_length(name: str) -> None:
    assert layout_of(name).under(5) is layout_of(name).under(None) is layout_of(name)


def test_a_change_of_pixel_bounds_keeps_the_variant_of_videos() -> None:
    older = layout_of("qwen3_vl").chosen(video="qwen3_vl/transformers-5.0/evs-0.25")
    changed = older.overridden({"max_pixels": 1 << 20})
    assert isinstance(changed, Qwen3VL)
    assert (changed.video_variant, changed.image.max_pixels) == (older.video_variant, 1 << 20)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2.0, float("nan")])
def test_a_pruning_rate_is_a_part_of_one(rate: float) -> None:
    with pytest.raises(ValueError, match="pruning rate"):
        pruning_part(rate)
