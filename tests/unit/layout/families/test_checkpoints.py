"""Parameters and ids come from the model folder; a folder that contradicts itself has no exact media."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.kv.reason import Reason
from services.layout.card import ModelCard
from services.layout.families.kimi_k25 import KimiK25, PatchLimits
from services.layout.families.llama4 import Llama4, Llama4Ids
from services.layout.families.llava import ClipTower, Llava
from services.layout.families.llava_next import LlavaNext
from services.layout.families.nemotron import Frames, Nemotron, NemotronIds
from services.layout.families.nemotron_images import ImageBudget
from tests.unit.layout.families.reading import family_of
from tests.unit.layout.golden import MODELS

Change = Callable[[dict[str, Any]], Any]
CONFIG, PROCESSOR, IMAGES = "config.json", "processor_config.json", "preprocessor_config.json"


def changed(tmp_path: Path, model: str, file: str, how: Change) -> ModelCard:
    """The card of a copy of a model folder with one file changed."""
    folder = tmp_path / "copy"
    shutil.copytree(MODELS / model, folder)
    value = json.loads((folder / file).read_text())
    how(value)
    (folder / file).write_text(json.dumps(value))
    return ModelCard.load(folder)


def test_llava() -> None:
    family = family_of("llava_1_5")
    assert isinstance(family, Llava)
    assert (family.image_token, family.image_text, family.tower) == (32000, "<image>", ClipTower(24, 576, 336))


def test_llava_next() -> None:
    family = family_of("llava_next")
    assert isinstance(family, LlavaNext)
    assert (family.image_token, family.tower) == (32000, ClipTower(24, 576, 336))
    assert family.pinpoints == ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


def test_llama_4() -> None:
    family = family_of("llama4")
    assert isinstance(family, Llama4)
    assert (family.image_token, family.per_tile, len(family.canvas.arrangements)) == (200090, 144, 50)
    assert family.ids == Llama4Ids(start=200080, end=200081, column=200084, row=200085, patch=200092)


def test_kimi() -> None:
    family = family_of("kimi_k25")
    assert isinstance(family, KimiK25)
    assert (family.image_token, family.limits) == (163605, PatchLimits(patch=14, merge=2, total=16384, one_side=512))
    assert family.image_text == "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"


def test_nemotron() -> None:
    family = family_of("nemotron_nano_omni")
    assert isinstance(family, Nemotron)
    assert family.ids == NemotronIds(image=18, video=131081, start=19, end=20)
    assert family.frames == Frames(target=1024, keep_aspect=True, temporal=2)
    assert (family.budget, family.tokens_per_tile) == (ImageBudget(patch=16, fewest=1024, most=13312), 256)


@pytest.mark.parametrize(
    ("model", "file", "how", "said"),
    [
        ("llava-1.5", CONFIG, lambda c: c.update(image_token_index=31999), "image_token_index is 31999, the tokenizer"),
        ("llava-1.5", CONFIG, lambda c: c.pop("image_token_index"), "image_token_id is None"),
        ("llava-1.5", CONFIG, lambda c: c["vision_config"].update(model_type="pixtral"), "expected clip_vision_model"),
        ("llava-1.5", CONFIG, lambda c: c["vision_config"].update(patch_size=16), "patch_size is 16, processor_config"),
        ("llava-1.5", CONFIG, lambda c: c["vision_config"].pop("image_size"), "no usable image_size"),
        ("llava-1.5", CONFIG, lambda c: c.pop("vision_feature_select_strategy"), "strategy is None"),
        (
            "llava-1.5",
            PROCESSOR,
            lambda c: c.update(vision_feature_select_strategy="full"),
            "default, processor_config",
        ),
        (
            "llava-1.5",
            IMAGES,
            lambda c: c.update(crop_size=224),
            "image_size is 336, preprocessor_config.json says 224",
        ),
        ("llava-next", CONFIG, lambda c: c["image_grid_pinpoints"].pop(), "image_grid_pinpoints"),
        ("llava-next", IMAGES, lambda c: c["image_grid_pinpoints"].reverse(), "expected them equal"),
        ("llama-4", CONFIG, lambda c: c.update(image_token_index=200090), "the tokenizer says <|patch|> is 200092"),
        ("llama-4", CONFIG, lambda c: c.update(boi_token_index=1), "boi_token_index is 1"),
        ("llama-4", CONFIG, lambda c: c["vision_config"].update(pixel_shuffle_ratio=0), "pixel_shuffle_ratio"),
        ("llama-4", PROCESSOR, lambda c: c.update(pixel_shuffle_ratio=0.25), "pixel_shuffle_ratio is 0.5"),
        ("llama-4", PROCESSOR, lambda c: c.update(fake_image_token="<|picture|>"), "no token <|picture|>"),
        ("llama-4", IMAGES, lambda c: c["size"].update(width=448), "preprocessor_config.json says 448"),
        ("llama-4", IMAGES, lambda c: c.pop("max_patches"), "no usable max_patches"),
        ("kimi-k2.5", CONFIG, lambda c: c.update(media_placeholder_token_id=163604), "<|media_pad|> is 163605"),
        ("kimi-k2.5", CONFIG, lambda c: c["vision_config"].update(patch_size=16), "config.json says 16"),
        ("kimi-k2.5", CONFIG, lambda c: c["vision_config"].update(merge_kernel_size=[4, 4]), "config.json says 4"),
        ("kimi-k2.5", IMAGES, lambda c: c.pop("media_proc_cfg"), "no usable patch_size"),
        ("kimi-k2.5", IMAGES, lambda c: c["media_proc_cfg"].update(fixed_output_tokens=256), "fixes the tokens"),
        ("nemotron-3-nano-omni", CONFIG, lambda c: c.update(img_context_token_id=19), "<image> is 18"),
        ("nemotron-3-nano-omni", CONFIG, lambda c: c.update(video_context_token_id=131080), "<video> is 131081"),
        ("nemotron-3-nano-omni", CONFIG, lambda c: c.update(video_context_token="<clip>"), "says <clip>"),
        ("nemotron-3-nano-omni", CONFIG, lambda c: c.update(downsample_ratio=0.25), "only 0.5 is known"),
        ("nemotron-3-nano-omni", CONFIG, lambda c: c["vision_config"].update(video_target_img_size=512), "both"),
        (
            "nemotron-3-nano-omni",
            CONFIG,
            lambda c: c["vision_config"]["args"].pop("max_num_patches"),
            "max_num_patches",
        ),
        ("qwen3-vl", CONFIG, lambda c: c.update(video_token_id=151655), "<|video_pad|> is 151656"),
        ("qwen2-vl", "video_preprocessor_config.json", lambda c: c.update(cap_pixels_per_frame=True), "cap_pixels"),
    ],
)
def test_contradictions(tmp_path: Path, model: str, file: str, how: Change, said: str) -> None:
    found = changed(tmp_path, model, file, how)
    assert (found.family, found.media_reason, found.text_reason) == (None, Reason.UNSUPPORTED_MODEL, None)
    assert said in (found.media_detail or ""), found.media_detail


@pytest.mark.parametrize(
    ("model", "file", "how", "tokens"),
    [
        ("llava-1.5", PROCESSOR, lambda c: c.pop("num_additional_image_tokens"), 576),
        ("llava-1.5", CONFIG, lambda c: c.update(image_token_id=c.pop("image_token_index")), 576),
        ("llava-next", PROCESSOR, lambda c: c.clear(), 1176),
        ("llama-4", PROCESSOR, lambda c: c.clear(), 144),
        ("kimi-k2.5", CONFIG, lambda c: c["vision_config"].clear(), 1),
    ],
)
def test_what_one_file_leaves_out_another_says(tmp_path: Path, model: str, file: str, how: Change, tokens: int) -> None:
    found = changed(tmp_path, model, file, how).family
    assert isinstance(found, Llava | LlavaNext | Llama4 | KimiK25)
    assert found.expand_image(1, 1).vision_tokens == tokens


def test_a_full_clip_tower_keeps_its_class_token(tmp_path: Path) -> None:
    def full(config: dict[str, Any]) -> None:
        config["vision_feature_select_strategy"] = "full"

    folder = tmp_path / "copy"
    shutil.copytree(MODELS / "llava-1.5", folder)
    for file in (CONFIG, PROCESSOR):
        value = json.loads((folder / file).read_text())
        full(value)
        (folder / file).write_text(json.dumps(value))
    family = ModelCard.load(folder).family
    assert isinstance(family, Llava)
    assert family.tower.features == 577


def test_older_nemotrons(tmp_path: Path) -> None:
    def older(config: dict[str, Any]) -> None:
        config.update(model_type="NemotronH_Nano_VL_V2", architectures=["NemotronH_Nano_VL_V2"])
        config.pop("video_context_token_id")
        config["vision_config"] = {"args": {}}

    family = changed(tmp_path, "nemotron-3-nano-omni", CONFIG, older).family
    assert isinstance(family, Nemotron)
    assert (family.variant, family.budget, family.ids.video) == ("nemotron_nano_vl", None, 131081)
    assert family.frames == Frames(target=None, keep_aspect=False, temporal=1)
    assert family.tokens_per_group(100, 200) == 256


def test_a_target_of_frames_may_be_given_as_a_size(tmp_path: Path) -> None:
    def sized(config: dict[str, Any]) -> None:
        config["vision_config"].update(video_target_num_patches=None, video_target_img_size=500)

    family = changed(tmp_path, "nemotron-3-nano-omni", CONFIG, sized).family
    assert isinstance(family, Nemotron)
    assert family.frames.target == 32 * 32


def test_a_checkpoint_may_ask_for_the_cap_itself(tmp_path: Path) -> None:
    def capped(config: dict[str, Any]) -> None:
        config["cap_pixels_per_frame"] = True

    family = changed(tmp_path, "qwen3-vl", "video_preprocessor_config.json", capped).family
    assert family is not None
    assert family.video_variant == "qwen3_vl/transformers-5.15/capped"
    assert "qwen3_vl/transformers-5.15" in family.video_variants()
