"""A model's card with its processor's layouts in place of a family's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from services.kv.reason import Reason
from services.layout.card import CardError, ModelCard
from services.layout.processor.family import ProcessorFamily
from services.layout.processor.processes import Processes

_PARAMETERS = (
    "preprocessor_config.json", "image_processor_config.json", "video_preprocessor_config.json",
    "processor_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip


def processor_card(card: ModelCard, processes: Processes) -> ModelCard:
    """The card, laid out by the processor of its folder. Blocking, some seconds.

    Where the processor can't be used the card is one of text, and says why.
    """
    try:
        described = processes.describe(card.folder)
    except CardError as error:
        return replace(card, family=None, media_reason=Reason.UNSUPPORTED_MODEL, media_detail=str(error))
    family = ProcessorFamily(described, parameters_digest(card.folder), partial(processes.expand, card.folder))
    return replace(card, family=family, media_reason=None, media_detail=None)


def parameters_digest(folder: Path) -> str:
    """Stands for all of a folder that a processor is made from: other bytes are another layout until proven."""
    texts = []
    for name in _PARAMETERS:
        file = folder / name
        texts.append(f"{name} {xxh3_64_hexdigest(file.read_bytes()) if file.is_file() else '-'}")
    return xxh3_64_hexdigest("\n".join(texts).encode())
