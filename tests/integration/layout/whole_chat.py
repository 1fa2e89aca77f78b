"""What a model's processor makes of a whole chat at once; for a process of its own."""

from __future__ import annotations

import os

from PIL import Image


def whole_chat(folder: str, text: str, sizes: list[list[int]]) -> list[int]:
    """Token ids of a rendered prompt with pictures of these (height, width)."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(folder, local_files_only=True)
    pictures = [Image.effect_noise((width, height), 50).convert("RGB") for height, width in sizes]
    made = processor(text=[text], images=[pictures], add_special_tokens=False)
    return list(made["input_ids"][0])
