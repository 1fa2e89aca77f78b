"""Kimi K2.5 and K2.6: images shrink to a budget of patches and are padded to whole tokens.

Videos are not laid out: vLLM 0.32 leaves their placeholder as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

from services.layout.families.family import Expansion, run
from services.layout.families.image_only import ImageFamily
from services.layout.families.parameters import Checkpoint, UnusableFamily, count, same, section

BEGIN, CONTENT, PAD, END = "<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"
_FILE = "preprocessor_config.json"


@dataclass(frozen=True)
class PatchLimits:
    """Parameters of the media processor."""

    patch: int
    merge: int
    total: int
    one_side: int

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width in pixels after shrinking, before padding. Never enlarges."""
        budget = self.total / (max(1, width // self.patch) * max(1, height // self.patch))
        longest = self.one_side * self.patch
        scale = min(1.0, sqrt(budget), longest / width, longest / height)
        return min(max(1, int(height * scale)), longest), min(max(1, int(width * scale)), longest)

    def tokens(self, height: int, width: int) -> int:
        """Tokens of an image: its shrunken sides in whole tokens, the last ones padded."""
        token = self.patch * self.merge
        tall, wide = self.resized(height, width)
        return -(-tall // token) * -(-wide // token)


@dataclass(frozen=True)
class KimiK25(ImageFamily):
    """Layout of ``kimi_k25``: ``<|media_pad|>`` times the image's tokens, markers outside the range."""

    limits: PatchLimits

    def expand_image(self, height: int, width: int) -> Expansion:
        """One token for each merged patch."""
        tokens = self.limits.tokens(height, width)
        return Expansion(run(self.image_token, tokens), tokens)


def build(model_type: str, checkpoint: Checkpoint) -> KimiK25:
    """The layout of a checkpoint. Raises UnusableFamily."""
    config = section(checkpoint.folder.image_processor, "media_proc_cfg")
    if config.get("fixed_output_tokens") is not None:
        raise UnusableFamily(f"{_FILE} fixes the tokens of an image: that layout is not known")
    limits = PatchLimits(
        patch=count(config, "patch_size", _FILE),
        merge=count({"merge_kernel_size": _one_side(config.get("merge_kernel_size"))}, "merge_kernel_size", _FILE),
        total=count(config, "in_patch_limit", _FILE),
        one_side=count(config, "patch_limit_on_one_side", _FILE),
    )
    same("patch_size", (_FILE, limits.patch), ("config.json", checkpoint.vision.get("patch_size")))
    merged = _one_side(checkpoint.vision.get("merge_kernel_size"))
    same("merge_kernel_size", (_FILE, limits.merge), ("config.json", merged))
    pad = checkpoint.agreed("media_placeholder_token_id", PAD)
    for marker in (BEGIN, CONTENT, END):
        checkpoint.special(marker)
    return KimiK25(model_type, pad, f"{BEGIN}image{CONTENT}{PAD}{END}", limits)


def _one_side(kernel: Any) -> Any:
    """A square kernel's side, however it is written; anything else as it is."""
    return kernel[0] if isinstance(kernel, list) and len(kernel) == 2 and kernel[0] == kernel[1] else kernel
