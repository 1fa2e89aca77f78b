"""Between a chat and vLLM's ``/inference/v1/generate``: which chats can take that way, and how they are answered. Pure.

The wire form is that of vLLM 0.32: a rendering *is* a request to generate; with ``output_mode`` text the answer holds
text beside the tokens, whole or as a stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_FIELDS = {"image_url": "image", "video_url": "video"}

_NOT_TEXT = (
    "tools", "functions", "tool_choice", "logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids",
    "return_tokens_as_token_ids", "use_beam_search", "echo", "kv_transfer_params", "ec_transfer_params",
    "modalities", "audio", "truncate_prompt_tokens",
)  # fmt: skip
"""Fields of a chat whose answers hold more than text, or that the rendering does not carry on."""


def identifiers(body: Mapping[str, Any]) -> dict[str, list[str]] | None:
    """What the chat's media are to be called, by modality in prompt order.

    None for a chat that can't be answered by generated text alone, or whose media are not all named.
    """
    options = body.get("stream_options") or {}
    if any(body.get(name) for name in _NOT_TEXT) or body.get("n") not in (None, 1):
        return None
    if options.get("continuous_usage_stats"):
        return None
    found: dict[str, list[str]] = {}
    for part in _parts(body):
        modality = _FIELDS.get(str(part.get("type")))
        if modality is None:
            if part.get("type") not in ("text", "input_text", "refusal"):
                return None
            continue
        uuid = part.get("uuid")
        if not isinstance(uuid, str) or not uuid:
            return None
        found.setdefault(modality, []).append(uuid)
    return found or None


def _parts(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else []:
            yield part if isinstance(part, dict) else {"type": "text"}


def generate_body(rendered: Any, names: Mapping[str, list[str]], body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The request to generate what was rendered, its media under our names.

    None where the rendering is not that of this chat, or the engine would have read more than text out of the answer
    (a reasoning parser): then the chat goes the usual way.
    """
    features = rendered.get("features") if isinstance(rendered, dict) else None
    if not isinstance(features, dict) or rendered.get("reasoning_parser_kwargs") is not None:
        return None
    hashes, inputs = features.get("mm_hashes"), features.get("kwargs_data")
    if not isinstance(hashes, dict) or not isinstance(inputs, dict) or hashes.keys() != names.keys():
        return None
    if any(not isinstance(hashes[kind], list) or len(hashes[kind]) != len(names[kind]) for kind in names):
        return None
    # An item that is left out would be looked up under a name that engine has not heard yet.
    if any(len(inputs.get(kind) or []) != len(names[kind]) or None in inputs[kind] for kind in names):
        return None
    sent = {**rendered, "features": {**features, "mm_hashes": dict(names), "mm_metadata": None}}
    sent |= {"output_mode": "text", "stream": bool(body.get("stream"))}
    sent["stream_options"] = {"include_usage": True} if sent["stream"] else None
    if body.get("cache_salt") is not None:
        sent["cache_salt"] = body["cache_salt"]
    return sent


@dataclass(frozen=True, slots=True)
class ChatHead:
    """What all pieces of one answer have in common."""

    response_id: str
    model: str
    created: int

    def whole(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """A chat completion. Raises KeyError, TypeError for what is no generated text."""
        choices = [
            {
                "index": choice["index"],
                "message": {"role": "assistant", "content": choice["text"], "refusal": None},
                "logprobs": None,
                "finish_reason": choice["finish_reason"],
                "stop_reason": choice.get("stop_reason"),
            }
            for choice in answer["choices"]
        ]
        return {**self._object("chat.completion", choices), "usage": answer.get("usage")}

    def opening(self) -> dict[str, Any]:
        """The first piece of a stream."""
        delta = {"role": "assistant", "content": ""}
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])

    def piece(self, chunk: Mapping[str, Any]) -> dict[str, Any]:
        """A piece of a stream. Raises KeyError, TypeError for what is no generated text."""
        if "error" in chunk:
            return dict(chunk)
        choices = [
            {
                "index": choice["index"],
                "delta": {"content": choice["text"]},
                "logprobs": None,
                "finish_reason": choice["finish_reason"],
                **({} if choice["finish_reason"] is None else {"stop_reason": choice.get("stop_reason")}),
            }
            for choice in chunk["choices"]
        ]
        usage = chunk.get("usage")
        return self._chunk(choices) | ({} if usage is None else {"usage": usage})

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._object("chat.completion.chunk", choices)

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.response_id, "object": kind, "created": self.created, "model": self.model, "choices": choices,
        }  # fmt: skip
