"""A chat body as it is sent to be rendered. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from schemas.media import MediaItem, MediaKind
from services.kv.identity import engine_uuid
from services.kv.reason import Reason
from services.layout.chat_request import UNKNOWN_PROMPT_FIELDS
from services.layout.render.rendered import NotRendered

_FIELDS = {MediaKind.IMAGE: "image_url", MediaKind.VIDEO: "video_url"}
_UNSENT = ("stream", "stream_options", "n", "cache_salt", "request_id", "priority")


def render_body(
    body: Mapping[str, Any], media: Sequence[MediaItem], data_uris: Mapping[int, str], *, model: str, lora: str | None
) -> dict[str, Any]:
    """The body for the render endpoint; ``data_uris`` replaces URLs, by index in ``media``.

    Media whose identity may travel are named by it, as they will be when the request runs. Raises NotRendered for what
    an engine must not be asked.
    """
    for name, meaning in UNKNOWN_PROMPT_FIELDS.items():
        if body.get(name):
            raise NotRendered(Reason.TEMPLATE_MISMATCH, meaning)
    sent = {name: value for name, value in body.items() if name not in _UNSENT}
    sent |= {"model": lora or model, "mm_payload": "none"}
    messages = _copied(body.get("messages"))
    sent["messages"] = messages
    for index, item in enumerate(media):
        part = _part(messages, item)
        if item.identity is not None and item.forward:
            part["uuid"] = engine_uuid(item.identity)
        field = _FIELDS.get(item.kind)
        if index in data_uris and field is not None:
            stated = part.get(field)
            part[field] = {**(stated if isinstance(stated, dict) else {}), "url": data_uris[index]}
    return sent


def _copied(messages: Any) -> Any:
    """Messages whose parts can be changed without changing the request's."""
    if not isinstance(messages, list):
        raise NotRendered(Reason.TEMPLATE_MISMATCH, "messages is no list")
    return [_copy(message) for message in messages]


def _copy(message: Any) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    return {**message, "content": [copy(part) for part in content]} if isinstance(content, list) else message


def _part(messages: Any, item: MediaItem) -> dict[str, Any]:
    try:
        part = messages[item.message]["content"][item.part]
    except (KeyError, IndexError, TypeError):
        part = None
    if not isinstance(part, dict):
        detail = f"message {item.message} holds no content part {item.part}"
        raise NotRendered(Reason.PLACEHOLDER_MISMATCH, detail)
    return part
