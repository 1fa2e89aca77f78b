"""Finds a model's family by its config and builds its layout from the folder's own parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from services.layout.families.family import Family
from services.layout.families.qwen import (
    IMAGE_PAD,
    VIDEO_PAD,
    VISION_END,
    VISION_START,
    PixelBounds,
    QwenIds,
    QwenVision,
)
from services.layout.families.qwen2_vl import Qwen2VL
from services.layout.families.qwen3_vl import Qwen3VL
from services.layout.folder import ModelFolder

TokenId = Callable[[str], int | None]
"""Id of a special token in the model's tokenizer."""


class UnusableFamily(Exception):
    """The model is of a known family, but its folder contradicts itself or lacks a parameter: no media are exact."""


FAMILIES: dict[str, type[QwenVision]] = {
    "qwen2_vl": Qwen2VL,
    "qwen2_5_vl": Qwen2VL,
    "qwen3_vl": Qwen3VL,
    "qwen3_vl_moe": Qwen3VL,
    "qwen3_5": Qwen3VL,
    "qwen3_5_moe": Qwen3VL,
}
"""By ``model_type`` of config.json."""

ARCHITECTURES = {
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
}
"""The model class each family's layouts were checked with. A checkpoint naming another class is not of the family."""


def find_family(folder: ModelFolder, token_id: TokenId) -> Family | None:
    """The layout of the model in ``folder``, or None for a family nothing is known of.

    Raises UnusableFamily saying which file disagrees with which.
    """
    model_type = folder.config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        return None
    architectures = folder.config.get("architectures") or []
    if any(ARCHITECTURES.get(name) != model_type for name in architectures):
        return None
    ids = _ids(folder.config, token_id)
    image = _bounds(folder.image_processor, folder, "preprocessor_config.json")
    video_section = folder.video_processor or folder.image_processor
    video = _bounds(video_section, folder, "video_preprocessor_config.json")
    return FAMILIES[model_type](model_type, ids, image, video)


def _ids(config: Mapping[str, Any], token_id: TokenId) -> QwenIds:
    names = {
        "image_token_id": IMAGE_PAD,
        "video_token_id": VIDEO_PAD,
        "vision_start_token_id": VISION_START,
        "vision_end_token_id": VISION_END,
    }
    found: list[int] = []
    for field, token in names.items():
        declared, actual = config.get(field), token_id(token)
        if declared is None or declared != actual:
            raise UnusableFamily(
                f"config.json says {field} is {declared}, the tokenizer says {token} is {actual}: expected them equal"
            )
        found.append(declared)
    return QwenIds(*found)


def _bounds(section: Mapping[str, Any], folder: ModelFolder, file: str) -> PixelBounds:
    size = section.get("size") or {}
    values: dict[str, Any] = {
        "min_pixels": _first(section.get("min_pixels"), size.get("shortest_edge")),
        "max_pixels": _first(section.get("max_pixels"), size.get("longest_edge")),
        "patch": section.get("patch_size"),
        "merge": section.get("merge_size"),
        "temporal": section.get("temporal_patch_size"),
    }
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise UnusableFamily(f"{file} (or processor_config.json) has no usable {name}: found {value!r}")
    if section.get("do_resize") is False:
        raise UnusableFamily(f"{file} sets do_resize to false: expected the family's resize")
    vision = folder.config.get("vision_config") or {}
    for name, key in (("patch", "patch_size"), ("merge", "spatial_merge_size"), ("temporal", "temporal_patch_size")):
        if vision.get(key, values[name]) != values[name]:
            raise UnusableFamily(f"config.json says {key} is {vision[key]}, {file} says {values[name]}")
    return PixelBounds(**values)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
