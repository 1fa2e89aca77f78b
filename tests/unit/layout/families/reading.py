"""How these tests read the reference vectors: prompts through a model's own tokenizer, spans and structures out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.media import MediaKind
from services.layout.expansion import expand
from services.layout.families.family import Family
from services.layout.shapes import MediaShape
from services.layout.view import View
from tests.unit.layout.golden import card, layouter

FOLDERS = {
    "qwen2_vl": "qwen2-vl",
    "qwen2_5_vl": "qwen2.5-vl",
    "qwen3_vl": "qwen3-vl",
    "qwen3_vl_moe": "qwen3-vl",
    "qwen3_5": "qwen3.5",
    "qwen3_5_moe": "qwen3.5",
    "llava_1_5": "llava-1.5",
    "llava_next": "llava-next",
    "llama4": "llama-4",
    "kimi_k25": "kimi-k2.5",
    "nemotron_nano_omni": "nemotron-3-nano-omni",
}
"""Model folders by the families' names in the vectors."""

ARTEFACTS = (1, 3)
"""Frame heights left out: the reference's loader takes such clips for channels-first pixels."""


def image(height: int | None, width: int | None) -> MediaShape:
    """An image of a size."""
    return MediaShape(MediaKind.IMAGE, height, width)


def clip(height: int, width: int, indices: Sequence[int], fps: float) -> MediaShape:
    """A video of which these frames were sampled."""
    return MediaShape(MediaKind.VIDEO, height, width, frame_indices=tuple(indices), fps=fps)


def family_of(name: str) -> Family:
    """The layout of a family's model folder."""
    found = card(FOLDERS[name]).family
    assert found is not None
    return found


def laid_out(name: str, prompt: str, media: Sequence[MediaShape], family: Family | None = None) -> View:
    """The view of a rendered prompt."""
    model = layouter(FOLDERS[name])
    return expand(model.encode(prompt), media, family or family_of(name), model.encode)


def ranges(placeholders: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Offsets and lengths of the vectors' placeholder ranges."""
    return [(place["offset"], place["length"]) for place in placeholders]


def spans(view: View) -> list[tuple[int, int]]:
    """Offsets and lengths of a view's spans, by item."""
    return [(span.offset, span.length) for span in sorted(view.spans, key=lambda span: span.item)]


def tokens_of(name: str, structure: Sequence[Any]) -> list[int]:
    """Token ids of a vector's structure in the model's own vocabulary: special tokens by name, text by tokenising."""
    tokeniser = layouter(FOLDERS[name]).tokeniser
    token_ids: list[int] = []
    for entry in structure:
        if isinstance(entry, dict):
            token_ids += tokeniser.encode(entry["text"])
            continue
        token_id = tokeniser.token_id(entry[0])
        assert token_id is not None, entry[0]
        token_ids += [token_id] * entry[1]
    return token_ids


def media_runs(structure: Sequence[Any], tokens: Sequence[str]) -> list[tuple[str, int]]:
    """The runs of some special tokens, without the text between."""
    return [(entry[0], entry[1]) for entry in structure if not isinstance(entry, dict) and entry[0] in tokens]
