"""Response bodies in vLLM 0.32's shape. Pure: values in, JSON objects out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.engine_sim.request import EngineRequest

FINGERPRINT = "vllm-0.32.0-simulated"


@dataclass(frozen=True, slots=True)
class Head:
    """What all chunks of one answer have in common. ``created`` is wall time in seconds."""

    response_id: str
    model: str
    created: int


@dataclass(frozen=True, slots=True)
class Details:
    """What usage tells of the prompt. ``created`` is None where the endpoint does not say."""

    cached: int
    created: int | None
    media: dict[str, int] | None

    def as_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "cached_tokens": self.cached,
            "created_cache_tokens": self.created,
            "multimodal_tokens": self.media,
        }


def usage(request: EngineRequest, details: Details | None) -> dict[str, Any]:
    """Token counts of a request so far."""
    return {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": len(request.token_ids),
        "completion_tokens": request.output_tokens,
        "prompt_tokens_details": None if details is None else details.as_dict(),
        "completion_tokens_details": None,
    }


def completion(
    head: Head, request: EngineRequest, text: str, details: Details | None, *, token_ids: bool
) -> dict[str, Any]:
    """A whole chat completion; with ``token_ids`` those of prompt and answer too."""
    message = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": request.finish_reason,
        "stop_reason": None,
        "token_ids": request.output_ids if token_ids else None,
        "routed_experts": None,
    }
    return {
        "id": head.response_id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": usage(request, details),
        "prompt_logprobs": None,
        "prompt_token_ids": request.token_ids[: request.prompt_tokens] if token_ids else None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def first_chunk(head: Head, prompt_token_ids: list[int] | None) -> dict[str, Any]:
    """The chunk that opens a stream: the role, and the prompt's ids if they were asked for."""
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    return {**_chunk(head, [choice]), "prompt_token_ids": prompt_token_ids, "prompt_text": None}


def text_chunk(head: Head, text: str, token_ids: list[int] | None, finish_reason: str | None) -> dict[str, Any]:
    """A piece of the answer; the last one has a reason."""
    choice: dict[str, Any] = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish_reason}
    if finish_reason is not None:
        choice["stop_reason"] = None
    choice["token_ids"] = token_ids
    return _chunk(head, [choice])


def usage_chunk(head: Head, request: EngineRequest, details: Details | None) -> dict[str, Any]:
    """The chunk that closes a stream for who asked for usage; without nulls, as vLLM sends it."""
    chunk = {**_chunk(head, []), "usage": usage(request, details), "system_fingerprint": FINGERPRINT}
    cleaned: dict[str, Any] = _without_nulls(chunk)
    return cleaned


def generated(
    head: Head, request: EngineRequest, details: Details | None, placeholders: dict[str, Any] | None, *,
    token_ids: bool, text: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The answer of ``/inference/v1/generate``: tokens, and ``text`` where that was asked for."""
    choice = {
        "index": 0,
        "finish_reason": request.finish_reason,
        "stop_reason": None,
        "token_ids": request.output_ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": [{"version": "default", "start": 0, "end": request.output_tokens}],
        "logprobs": None,
    }
    return {
        "request_id": head.response_id,
        "model": head.model,
        "created": head.created,
        "usage": usage(request, details),
        "prompt_logprobs": None,
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": request.token_ids[: request.prompt_tokens] if token_ids else None,
        "mm_placeholders": placeholders if token_ids else None,
        "metrics": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "output_mode": "tokens" if text is None else "text",
        "choices": [choice if text is None else {**choice, "text": text}],
    }


def generated_chunk(head: Head, token_ids: list[int], finish_reason: str | None, text: str | None) -> dict[str, Any]:
    """A piece of a stream of ``/inference/v1/generate``."""
    choice = {
        "index": 0,
        "finish_reason": finish_reason,
        "stop_reason": None,
        "token_ids": token_ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": None,
        "logprobs": None,
    }
    mode = "tokens" if text is None else "text"
    choices = [choice if text is None else {**choice, "text": text}]
    return {"request_id": head.response_id, "usage": None, "output_mode": mode, "choices": choices}


def generated_usage(head: Head, request: EngineRequest, details: Details, *, text: bool) -> dict[str, Any]:
    """The chunk that closes such a stream for who asked for usage; without nulls."""
    mode = "text" if text else "tokens"
    chunk = {
        "request_id": head.response_id, "usage": usage(request, details), "output_mode": mode, "choices": [],
    }  # fmt: skip
    cleaned: dict[str, Any] = _without_nulls(chunk)
    return cleaned


def _chunk(head: Head, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": head.response_id,
        "object": "chat.completion.chunk",
        "created": head.created,
        "model": head.model,
        "choices": choices,
    }


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}
    return value
