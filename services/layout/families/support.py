"""Which engines are exact for which family and medium: the upper bound of what a worker's probes may prove."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.families.nemotron_config import FAMILIES as NEMOTRON
from services.layout.families.registry import ENTRIES
from services.layout.families.variants import PROCESSOR, RENDER, family_of

_QWEN = frozenset({"qwen2_vl", "qwen3_vl", "qwen3_5"})
_LLAVA = frozenset({"llava", "llava_next"})


@dataclass(frozen=True, slots=True)
class EngineSupport:
    """Families, by their names in the registry, of which an engine's KV events say which medium stands in a block.

    ``since`` is the first version that does; empty: every version the agents know.
    """

    title: str
    images: frozenset[str]
    videos: frozenset[str] = frozenset()
    since: str = ""


ENGINES: Mapping[str, EngineSupport] = {
    "vllm": EngineSupport(
        "vLLM",
        images=frozenset(entry.engines for entry in ENTRIES if entry.image.exact),
        videos=frozenset(entry.engines for entry in ENTRIES if entry.video.exact),
    ),
    "sglang": EngineSupport("SGLang", images=_QWEN | _LLAVA | {"llama4", "kimi_k25"}, since="0.5.13"),
    "trtllm": EngineSupport("TensorRT-LLM", images=frozenset({"qwen2_vl", "kimi_k25"})),
}
"""By ``engine`` of a worker's registration."""

_ENGINES_NAME = {
    **{model_type: entry.engines for entry in ENTRIES for model_type in entry.model_types},
    **dict.fromkeys(NEMOTRON.values(), "nemotron_nano"),
}


def supports(engine: str, variant: str, kind: MediaKind, version: str = "") -> Reason | None:
    """Why media of a kind are not exact on an engine, None if they can be.

    ``variant`` is a family or one of its layouts. A ``version`` that can't be read is taken for a new one.
    """
    row = ENGINES.get(engine)
    if row is None:
        return Reason.UNSUPPORTED_ENGINE
    if family_of(variant) in (PROCESSOR, RENDER):
        # Of any model, so only where the engine names media in its events and tells a chat's token ids.
        return None if engine == "vllm" else Reason.UNSUPPORTED_ENGINE
    family = _ENGINES_NAME.get(family_of(variant))
    if family is None:
        return Reason.UNSUPPORTED_MODEL
    covered = {MediaKind.IMAGE: row.images, MediaKind.VIDEO: row.videos}.get(kind, frozenset())
    if family not in covered or _older(version, row.since):
        return Reason.UNSUPPORTED_ENGINE
    return None


def _older(version: str, since: str) -> bool:
    found, wanted = _numbers(version), _numbers(since)
    return bool(found and wanted) and found < wanted


def _numbers(version: str) -> list[int]:
    numbers = []
    for part in version.removeprefix("v").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return numbers
