"""Reads a Nemotron Nano checkpoint's config.json as the engine does."""

from __future__ import annotations

from math import ceil

from services.layout.families.nemotron import Frames, Nemotron, NemotronIds
from services.layout.families.nemotron_images import ImageBudget
from services.layout.families.parameters import Checkpoint, UnusableFamily, count, same, section

FAMILIES = {
    "NemotronH_Nano_Omni_Reasoning_V3": "nemotron_nano_omni",
    "NemotronH_Nano_VL_V2": "nemotron_nano_vl",
}
"""Names of the families by model_type."""

_FILE = "config.json"


def build(model_type: str, checkpoint: Checkpoint) -> Nemotron:
    """The layout of a checkpoint. Raises UnusableFamily."""
    config = checkpoint.config
    patch = count(config, "patch_size", _FILE)
    if config.get("downsample_ratio") != 0.5:
        raise UnusableFamily(f"{_FILE} says downsample_ratio is {config.get('downsample_ratio')!r}: only 0.5 is known")
    return Nemotron(
        family=FAMILIES[model_type],
        ids=_ids(checkpoint),
        frames=_frames(checkpoint, patch),
        tile=count(config, "force_image_size", _FILE),
        patch=patch,
        thumbnail=bool(config.get("use_thumbnail")),
        budget=_budget(checkpoint, patch),
        max_model_len=_own_length(checkpoint),
    )


def _ids(checkpoint: Checkpoint) -> NemotronIds:
    image, video = "<image>", "<video>"
    for field, token in (("img_context_token", image), ("video_context_token", video)):
        same(field, ("the engine", token), (_FILE, checkpoint.config.get(field)))
    states_video = "video_context_token_id" in checkpoint.config
    return NemotronIds(
        image=checkpoint.agreed("img_context_token_id", image),
        video=checkpoint.agreed("video_context_token_id", video) if states_video else checkpoint.token_id(video),
        start=checkpoint.special("<img>"),
        end=checkpoint.special("</img>"),
    )


def _frames(checkpoint: Checkpoint, patch: int) -> Frames:
    vision = checkpoint.vision
    target, pixels = vision.get("video_target_num_patches"), vision.get("video_target_img_size")
    if target is not None and pixels is not None:
        raise UnusableFamily(f"{_FILE} sets both video_target_num_patches and video_target_img_size")
    if target is not None:
        target = count(vision, "video_target_num_patches", _FILE)
    elif pixels is not None:
        target = ceil(count(vision, "video_target_img_size", _FILE) / patch) ** 2
    temporal = count({"video_temporal_patch_size": 1, **vision}, "video_temporal_patch_size", _FILE)
    return Frames(target, bool(vision.get("video_maintain_aspect_ratio")), temporal)


def _budget(checkpoint: Checkpoint, patch: int) -> ImageBudget | None:
    arguments = section(checkpoint.vision, "args")
    if "min_num_patches" not in arguments:
        return None
    file = f"{_FILE} (vision_config.args)"
    fewest, most = count(arguments, "min_num_patches", file), count(arguments, "max_num_patches", file)
    return ImageBudget(patch, fewest, most)


def _own_length(checkpoint: Checkpoint) -> int | None:
    """What an engine takes that is not told otherwise: the model's own length."""
    config = checkpoint.config
    for part in (config, section(config, "llm_config"), section(config, "text_config")):
        length = part.get("max_position_embeddings")
        if isinstance(length, int) and length > 0:
            return length
    return None
