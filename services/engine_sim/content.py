"""The media parts of a chat request, as vLLM reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from schemas.media import MediaKind
from services.engine_sim.errors import bad_request

_KINDS = {"image_url": MediaKind.IMAGE, "video_url": MediaKind.VIDEO}
_REFUSED = {"input_audio": "audio", "audio_url": "audio", "image_embeds": "image", "video_embeds": "video"}


@dataclass(frozen=True, slots=True)
class MediaPart:
    """One image or video part. ``uuid`` stands beside the URL object; one inside it is ignored."""

    kind: MediaKind
    url: str | None
    uuid: str | None


def media_parts(messages: list[Any]) -> list[MediaPart]:
    """Image and video parts of all messages, in prompt order. Raises ApiError for parts no engine would take."""
    return [found for part in _parts(messages) if (found := _media_part(part)) is not None]


def _parts(messages: list[Any]) -> Iterator[dict[str, Any]]:
    for message in messages:
        if not isinstance(message, dict):
            raise bad_request(f"messages holds a {type(message).__name__}, expected objects", "messages")
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                yield part
            elif not isinstance(part, str):
                raise bad_request(f"content holds a {type(part).__name__}, expected objects", "content")


def _media_part(part: dict[str, Any]) -> MediaPart | None:
    named = part.get("type")
    if refused := next((key for key in (named, *part) if key in _REFUSED), None):
        raise bad_request(f"At most 0 {_REFUSED[refused]}(s) may be provided in one prompt.", _REFUSED[refused])
    field = named if named in _KINDS else next((key for key in _KINDS if key in part), None) if named is None else None
    if field is None:
        return None
    value = part.get(field)
    url = value.get("url") if isinstance(value, dict) else value
    uuid = part.get("uuid")
    if url is not None and not isinstance(url, str):
        raise bad_request(f"{field} holds a {type(url).__name__}, expected a URL", field)
    if not url and uuid is None:
        raise bad_request(f"{field} has neither a URL nor a uuid beside it", field)
    return MediaPart(_KINDS[field], url or None, None if uuid is None else str(uuid))
