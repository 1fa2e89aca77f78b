"""Why a routing view is not exact from some token on: one catalogue, for the enum, the metric label and the docs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """The first cause, in prompt order, that ended exactness. What stands before it still counts."""

    UNSUPPORTED_MODEL = "unsupported_model"
    UNSUPPORTED_ENGINE = "unsupported_engine"
    UNSUPPORTED_MEDIA = "unsupported_media"
    CLIENT_UUID = "client_uuid"
    MM_PROCESSOR_KWARGS = "mm_processor_kwargs"
    MEDIA_IO_KWARGS = "media_io_kwargs"
    AUDIO = "audio"
    ADJACENT_VIDEOS = "adjacent_videos"
    MULTIPLE_VIDEOS = "multiple_videos"
    MIXED_MEDIA = "mixed_media"
    CONTRACT_MISSING = "contract_missing"
    CONTRACT_MISMATCH = "contract_mismatch"
    TEMPLATE_MISMATCH = "template_mismatch"
    WORKERS_DISAGREE = "workers_disagree"
    DECODE_DISABLED = "decode_disabled"
    FETCH_FAILED = "fetch_failed"
    DECODE_FAILED = "decode_failed"
    CODEC_UNSUPPORTED = "codec_unsupported"
    TOO_LARGE = "too_large"
    PLACEHOLDER_MISMATCH = "placeholder_mismatch"
    VIDEO_METADATA_AMBIGUOUS = "video_metadata_ambiguous"
    BUDGET_EXCEEDED = "budget_exceeded"
    TEMPLATE_MISSING = "template_missing"
    HYBRID_CACHE = "hybrid_cache"
    IDENTITY_NOT_FORWARDABLE = "identity_not_forwardable"
    BLOCK_SIZE_UNSEEN = "block_size_unseen"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a reason says, and what an operator or a client can do about it."""

    what: str
    mend: str


MEANING: dict[Reason, Meaning] = {
    Reason.UNSUPPORTED_MODEL: Meaning(
        "The model belongs to no family whose layout kvroute knows, or no model folder is given for it.",
        "Name its folder in `KVROUTE_MODELS`; for an unknown family text-prefix routing is what there is.",
    ),
    Reason.UNSUPPORTED_ENGINE: Meaning(
        "The workers' engine does not say in its KV events which medium stands in a block.",
        "Serve the model with an engine version that does.",
    ),
    Reason.UNSUPPORTED_MEDIA: Meaning(
        "A content part of a kind this model's layout does not cover.",
        "Send images as `image_url`; look at the decision's media rows for the item.",
    ),
    Reason.CLIENT_UUID: Meaning(
        "The client named the medium by a uuid of its own. It was removed, and the medium counts as unknown.",
        "Leave the uuid out, or trust your clients with `KVROUTE_MEDIA_TRUST_UUID=true`.",
    ),
    Reason.MM_PROCESSOR_KWARGS: Meaning(
        "The request changes the engine's processor parameters, and with them how many tokens a medium takes.",
        "Set them for the whole model on the engine, not in the request.",
    ),
    Reason.MEDIA_IO_KWARGS: Meaning(
        "The request changes how the engine reads media, such as the number of video frames.",
        "Set them for the whole model on the engine, not in the request.",
    ),
    Reason.AUDIO: Meaning("An audio part: its tokens are not laid out.", "Put audio after images and text."),
    Reason.ADJACENT_VIDEOS: Meaning(
        "Two videos stand side by side in a family that does not keep them apart.",
        "Send one video in a request.",
    ),
    Reason.MULTIPLE_VIDEOS: Meaning(
        "More videos than the family's layout is proven for.",
        "Send one video in a request.",
    ),
    Reason.MIXED_MEDIA: Meaning(
        "Kinds of media together that the family's layout is not proven for.",
        "Put images before the video: those stay exact.",
    ),
    Reason.CONTRACT_MISSING: Meaning(
        "No live worker of the model has proven a layout for this kind of medium yet.",
        "Look at `kvroute worker list` and at the agent's log: a probe is still running or has failed.",
    ),
    Reason.CONTRACT_MISMATCH: Meaning(
        "Probing found that the engine lays out prompts like none of the known variants, or like several.",
        "The agent's log shows both token lists; usually the model folder is not the one the engine serves.",
    ),
    Reason.TEMPLATE_MISMATCH: Meaning(
        "The engine renders chats differently from the chat template in the model folder.",
        "Give kvroute the same template as the engine (`--chat-template`), or the same checkpoint revision.",
    ),
    Reason.WORKERS_DISAGREE: Meaning(
        "Live workers of one model have proven different layouts.",
        "Bring them to one engine version and one set of flags, or serve them under two model names.",
    ),
    Reason.DECODE_DISABLED: Meaning(
        "A video's tokens depend on its frames, and videos are not decoded in this deployment.",
        "Set `KVROUTE_MEDIA_DECODE_VIDEOS=true`.",
    ),
    Reason.FETCH_FAILED: Meaning(
        "The medium could not be fetched: no answer in time, an HTTP error, a broken transfer.",
        "Look at the decision's detail; the engine may still succeed by itself.",
    ),
    Reason.DECODE_FAILED: Meaning(
        "The bytes are no image or video that can be read: truncated, empty, or something else.",
        "Look at what the URL really serves.",
    ),
    Reason.CODEC_UNSUPPORTED: Meaning(
        "The container or codec can't be decoded here.",
        "Convert the medium, or accept text-prefix routing for it.",
    ),
    Reason.TOO_LARGE: Meaning(
        "The medium is over a limit in bytes, pixels or frames.",
        "Make it smaller, or raise `KVROUTE_MEDIA_MAX_BYTES` or `KVROUTE_MEDIA_MAX_PIXELS`.",
    ),
    Reason.PLACEHOLDER_MISMATCH: Meaning(
        "The prompt holds another number of media placeholders than the request has media; "
        "somebody may have typed one as text.",
        "Don't send special tokens as text.",
    ),
    Reason.VIDEO_METADATA_AMBIGUOUS: Meaning(
        "The video's own numbers (frames, rate, duration) contradict each other or what was decoded.",
        "Re-encode the video at a constant rate.",
    ),
    Reason.BUDGET_EXCEEDED: Meaning(
        "The request as a whole is over a limit: too many media, too much time spent on them, or more images than the "
        "engine's `--max-model-len` leaves room for.",
        "Send fewer media, raise `KVROUTE_MEDIA_MAX_ITEMS`, or serve the model with a larger length.",
    ),
    Reason.TEMPLATE_MISSING: Meaning(
        "The model folder has no chat template.",
        "Put `chat_template.jinja` into the folder.",
    ),
    Reason.HYBRID_CACHE: Meaning(
        "The engine keeps several cache groups (attention beside Mamba or sliding windows) and reuses a prefix only "
        "where all of them have it. Only the attention's blocks are followed: the overlap is an upper bound.",
        "None: the prompt is exact, and the worker with the longest overlap is still the best guess.",
    ),
    Reason.IDENTITY_NOT_FORWARDABLE: Meaning(
        "The medium has an identity, but the engine can't be told it, so its KV events can't carry it back.",
        "Use content identity, or serve the medium with an ETag, Last-Modified or length.",
    ),
    Reason.BLOCK_SIZE_UNSEEN: Meaning(
        "No live worker has said its block size yet, so there is nothing to cut the prompt by.",
        "Start a worker, or set `KVROUTE_BLOCK_SIZES`.",
    ),
}
"""Every reason explained. A reason without a meaning is a failing test."""
