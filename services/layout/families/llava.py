"""LLaVA 1.5: every image is cropped to one size, so every image takes the same number of tokens."""

from __future__ import annotations

from dataclasses import dataclass

from services.layout.families.family import Expansion, run
from services.layout.families.image_only import ImageFamily
from services.layout.families.parameters import Checkpoint, UnusableFamily, count, same


@dataclass(frozen=True)
class ClipTower:
    """A CLIP vision tower: patches along a side, and features that reach the language model."""

    grid: int
    features: int
    image_size: int


@dataclass(frozen=True)
class Llava(ImageFamily):
    """Layout of ``llava``."""

    tower: ClipTower

    def expand_image(self, height: int, width: int) -> Expansion:
        """``<image>`` times the tower's features, whatever the size."""
        return Expansion(run(self.image_token, self.tower.features), self.tower.features)


def read_tower(checkpoint: Checkpoint) -> ClipTower:
    """The tower as config.json has it. Raises UnusableFamily for another kind, and where other files disagree.

    The engine counts as the config says. ``num_additional_image_tokens`` of processor_config.json (the class token)
    is not looked at: checkpoints without it are counted one short by transformers, not by engines.
    """
    vision, processor = checkpoint.vision, checkpoint.folder.processor
    if vision.get("model_type") != "clip_vision_model":
        raise UnusableFamily(f"vision_config.model_type is {vision.get('model_type')!r}, expected clip_vision_model")
    image_size = count(vision, "image_size", "config.json")
    patch_size = count(vision, "patch_size", "config.json")
    strategy = checkpoint.config.get("vision_feature_select_strategy")
    if strategy not in ("default", "full"):
        raise UnusableFamily(f"config.json says vision_feature_select_strategy is {strategy!r}, not default or full")
    crop = checkpoint.folder.image_processor.get("crop_size")
    sides = crop if isinstance(crop, dict) else {"height": crop, "width": crop}
    selected = processor.get("vision_feature_select_strategy")
    same("vision_feature_select_strategy", ("config.json", strategy), ("processor_config.json", selected))
    same("patch_size", ("config.json", patch_size), ("processor_config.json", processor.get("patch_size")))
    for side in ("height", "width"):
        same("image_size", ("config.json", image_size), ("preprocessor_config.json", sides.get(side)))
    grid = image_size // patch_size
    return ClipTower(grid, grid * grid + (strategy == "full"), image_size)


def image_token(checkpoint: Checkpoint) -> tuple[int, str]:
    """Id and text of the image placeholder. Raises UnusableFamily unless config and tokenizer agree."""
    text = checkpoint.token_text("image_token", "<image>")
    field = "image_token_index" if "image_token_index" in checkpoint.config else "image_token_id"
    return checkpoint.agreed(field, text), text


def build(model_type: str, checkpoint: Checkpoint) -> Llava:
    """The layout of a checkpoint. Raises UnusableFamily."""
    return Llava(model_type, *image_token(checkpoint), read_tower(checkpoint))
