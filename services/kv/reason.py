"""Why a routing view is not exact from some token on. One catalogue: an enum, a metric label, a column, a docs table."""

from __future__ import annotations

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
