"""Finds a model's family by its config and builds its layout from the folder's own parameters."""

from __future__ import annotations

from services.kv.reason import Reason
from services.layout.families import kimi_k25, llama4, llava, llava_next, nemotron_config, qwen2_vl, qwen3_vl
from services.layout.families.entry import Coverage, Entry
from services.layout.families.family import Family
from services.layout.families.parameters import Checkpoint, TokenId, UnusableFamily
from services.layout.folder import ModelFolder

__all__ = ["ENTRIES", "TokenId", "UnusableFamily", "entry_of", "find_family"]

_NO_VIDEO = Coverage(False, "the family takes no video", (Reason.UNSUPPORTED_MEDIA,))
_REFUSED = (Reason.UNSUPPORTED_MEDIA,)

ENTRIES: tuple[Entry, ...] = (
    Entry(
        title="Qwen2-VL, Qwen2.5-VL",
        engines="qwen2_vl",
        architectures={
            "Qwen2VLForConditionalGeneration": "qwen2_vl",
            "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
        },
        build=qwen2_vl.build,
        image=Coverage(
            True, "sides' ratio up to 200", _REFUSED,
            ("qwen2_vl_image", "qwen2_5_vl_image", "qwen_mixed_and_pruning", "bulk_qwen_image_resize"),
        ),
        video=Coverage(
            True, "two frames or more, a known rate", _REFUSED,
            ("qwen2_vl_video", "qwen2_5_vl_video", "qwen_mixed_and_pruning", "bulk_qwen_video_resize",
             "bulk_video_sampling"),
        ),
    ),
    Entry(
        title="Qwen3-VL, dense and MoE",
        engines="qwen3_vl",
        architectures={
            "Qwen3VLForConditionalGeneration": "qwen3_vl",
            "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe",
        },
        build=qwen3_vl.build,
        image=Coverage(
            True, "sides' ratio up to 200", _REFUSED,
            ("qwen3_vl_image", "qwen3_vl_moe_image", "qwen_mixed_and_pruning", "bulk_qwen_image_resize"),
        ),
        video=Coverage(
            True, "the engine's transformers generation and pruning as its probes prove", _REFUSED,
            ("qwen3_vl_video", "qwen3_vl_moe_video", "qwen3_vl_video_transformers_4.57.6",
             "qwen3_vl_video_transformers_5.9.0", "qwen3_vl_video_transformers_5.14.1",
             "qwen3_vl_video_transformers_5.24.0", "qwen_mixed_and_pruning", "bulk_qwen_video_resize",
             "bulk_qwen3_timestamps", "bulk_video_sampling"),
        ),
    ),
    Entry(
        title="Qwen3.5, Qwen3.6, dense and MoE",
        engines="qwen3_5",
        architectures={
            "Qwen3_5ForConditionalGeneration": "qwen3_5",
            "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
        },
        build=qwen3_vl.build,
        image=Coverage(
            True, "sides' ratio up to 200", _REFUSED,
            ("qwen3_5_image", "qwen3_5_moe_image", "chat_render", "bulk_qwen_image_resize"),
        ),
        video=Coverage(
            True, "the engine's transformers generation and pruning as its probes prove", _REFUSED,
            ("qwen3_5_video", "qwen3_5_moe_video", "bulk_qwen_video_resize", "bulk_qwen3_timestamps",
             "bulk_video_sampling"),
        ),
    ),
    Entry(
        title="LLaVA 1.5",
        engines="llava",
        architectures={"LlavaForConditionalGeneration": "llava"},
        build=llava.build,
        image=Coverage(True, "CLIP vision towers", _REFUSED, ("llava_1_5_image",)),
        video=_NO_VIDEO,
    ),
    Entry(
        title="LLaVA-NeXT (v1.6)",
        engines="llava_next",
        architectures={"LlavaNextForConditionalGeneration": "llava_next"},
        build=llava_next.build,
        image=Coverage(True, "CLIP vision towers", _REFUSED, ("llava_next_image", "bulk_llava_next")),
        video=_NO_VIDEO,
    ),
    Entry(
        title="Llama 4 (Scout, Maverick)",
        engines="llama4",
        architectures={"Llama4ForConditionalGeneration": "llama4"},
        build=llama4.build,
        image=Coverage(True, "", _REFUSED, ("llama4_image", "bulk_llama4", "chat_render")),
        video=_NO_VIDEO,
    ),
    Entry(
        title="Kimi K2.5, K2.6",
        engines="kimi_k25",
        architectures={"KimiK25ForConditionalGeneration": "kimi_k25"},
        build=kimi_k25.build,
        image=Coverage(True, "", _REFUSED, ("kimi_k25_image", "bulk_kimi_k25")),
        video=Coverage(False, "engines do not expand the placeholder", _REFUSED),
    ),
    Entry(
        title="Nemotron 3 Nano Omni, Nemotron Nano VL",
        engines="nemotron_nano",
        architectures={name: name for name in nemotron_config.FAMILIES},
        build=nemotron_config.build,
        image=Coverage(
            True, "all images fit the engine's max_model_len together",
            (Reason.UNSUPPORTED_MEDIA, Reason.BUDGET_EXCEEDED, Reason.CONTRACT_MISSING),
            ("nemotron_nano_omni_image", "nemotron_nano_v2_vl_static_tiles_image", "bulk_nemotron"),
        ),
        video=Coverage(
            True, "one video alone, without its sound",
            (Reason.UNSUPPORTED_MEDIA, Reason.MULTIPLE_VIDEOS, Reason.ADJACENT_VIDEOS, Reason.MIXED_MEDIA),
            ("nemotron_nano_omni_video", "bulk_nemotron", "bulk_video_sampling"),
        ),
    ),
)  # fmt: skip


def entry_of(model_type: object) -> Entry | None:
    """The family of a ``model_type``, or None for one nothing is known of."""
    return next((entry for entry in ENTRIES if model_type in entry.model_types), None)


def find_family(folder: ModelFolder, token_id: TokenId) -> Family | None:
    """The layout of the model in ``folder``, or None for a family nothing is known of.

    A checkpoint that names another model class than the family was checked with is not of the family. Raises
    UnusableFamily saying which file disagrees with which.
    """
    model_type = folder.config.get("model_type")
    entry = entry_of(model_type)
    if entry is None or not isinstance(model_type, str):
        return None
    architectures = folder.config.get("architectures") or []
    if not isinstance(architectures, list) or any(_class_of(entry, name) != model_type for name in architectures):
        return None
    return entry.build(model_type, Checkpoint(folder, token_id))


def _class_of(entry: Entry, architecture: object) -> str | None:
    """The model_type a model class stands for in a family."""
    return entry.architectures.get(architecture) if isinstance(architecture, str) else None
