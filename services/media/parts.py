"""Finds the media in an OpenAI chat body, checks their form, and takes the clients' uuids out. Pure.

vLLM's reader is the measure: a part without ``type`` is taken by the media key it has, a uuid stands beside the
medium and wins over its content. So every uuid is removed, whatever part it stands in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.media.intake import invalid
from services.runtime.errors import Refused

TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "tool_reference", "reasoning"})
URL_KEYS = {"image_url": MediaKind.IMAGE, "video_url": MediaKind.VIDEO, "audio_url": MediaKind.AUDIO}
_OTHER_KEYS = ("image_pil", "image_embeds", "audio_embeds", "prompt_embeds", "input_audio")
_MEDIA_WORDS = frozenset({"image", "video", "audio", "file", "input_image", "input_video", "input_file"})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,15}:")
_URL_LIMIT = 8192
_TYPE_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Found:
    """One media part: where it stands, what it says it is, and what is wrong with it from the start."""

    kind: MediaKind
    message: int
    part: int
    url: str | None
    uuid: str | None = None
    reason: Reason | None = None
    detail: str | None = None
    replaceable: bool = True
    """The URL stands in ``part[<kind>_url].url``: bytes can be put in its place."""

    @property
    def where(self) -> str:
        """For people."""
        return f"messages[{self.message}].content[{self.part}]"


def find_media(body: dict[str, Any], *, trust_uuid: bool, max_items: int) -> list[Found]:
    """All media of a body in prompt order. Takes uuids out of the body and gives untyped media parts their type.

    Raises Refused (400) for a body whose messages no engine could read.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid("messages is missing or empty, expected a list of messages", "messages")
    found: list[Found] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise invalid(f"messages[{index}] is not an object, expected role and content")
        if not isinstance(message.get("role"), str):
            raise invalid(f"messages[{index}].role is missing, expected text such as user or system")
        content = message.get("content")
        if content is None or isinstance(content, str):
            continue
        if not isinstance(content, list):
            raise invalid(f"messages[{index}].content is neither text nor a list of parts")
        for number, part in enumerate(content):
            if isinstance(part, str):
                continue
            if not isinstance(part, dict):
                raise invalid(f"messages[{index}].content[{number}] is not an object, expected a content part")
            medium = _read_part(part, index, number, trust_uuid)
            if medium is not None:
                found.append(medium)
        if len(found) > max_items:
            raise Refused(400, f"the request has more than {max_items} media", code="too_many_media")
    return found


def set_url(body: dict[str, Any], found: Found, url: str) -> None:
    """Put another URL in a part's place, such as the bytes themselves."""
    part = body["messages"][found.message]["content"][found.part]
    part[f"{found.kind.value}_url"] = {**_as_object(part[f"{found.kind.value}_url"]), "url": url}


def _read_part(part: dict[str, Any], message: int, number: int, trust_uuid: bool) -> Found | None:
    where = f"messages[{message}].content[{number}]"
    uuid = _take_uuid(part, where)
    kind = part.get("type")
    if kind is None:
        kind = _kind_by_key(part, where)
        part["type"] = kind
    if not isinstance(kind, str) or not 0 < len(kind) <= _TYPE_LIMIT:
        raise invalid(f"{where}.type is not a short text, expected text, image_url, …")
    if kind in TEXT_TYPES:
        text = part.get("text")
        if text is not None and not isinstance(text, str):
            raise invalid(f"{where}.text is not text")
        return None
    keys = [key for key in (*URL_KEYS, *_OTHER_KEYS) if part.get(key) is not None]
    if len(keys) > 1:
        raise invalid(f"{where} carries {' and '.join(keys)}, expected one medium")
    if kind not in URL_KEYS:
        return _unsupported(part, kind, message, number, uuid)
    if keys and keys != [kind]:
        raise invalid(f"{where} has type {kind} and carries {keys[0]}, expected {kind}")
    url = _url_of(part, kind, where)
    _check_uuid(uuid, url, where, trust_uuid)
    reason, detail = _first_reason(URL_KEYS[kind], uuid, trust_uuid)
    return Found(URL_KEYS[kind], message, number, url, uuid or None, reason, detail)


def _take_uuid(part: dict[str, Any], where: str) -> str | None:
    """Remove every uuid of a part, those inside the media object too (engines ignore these; nobody should wonder)."""
    uuid = part.pop("uuid", None)
    for key in URL_KEYS:
        inner = part.get(key)
        if isinstance(inner, dict):
            inner.pop("uuid", None)
    if uuid is not None and not isinstance(uuid, str):
        raise invalid(f"{where}.uuid is not text")
    return uuid


def _kind_by_key(part: dict[str, Any], where: str) -> str:
    for key in (*URL_KEYS, *_OTHER_KEYS, "text", "refusal"):
        if key in part:
            return key
    raise invalid(f"{where} has no type, expected text, image_url, …")


def _url_of(part: dict[str, Any], kind: str, where: str) -> str | None:
    value = part.get(kind)
    if isinstance(value, dict):
        value = value.get("url")
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise invalid(f"{where}.{kind}.url is not text, expected an http(s): or data: URL")
    if len(value) > _URL_LIMIT and value[:5].lower() != "data:":
        raise invalid(f"{where}.{kind}.url has {len(value)} characters, expected at most {_URL_LIMIT}")
    return value


def _check_uuid(uuid: str | None, url: str | None, where: str, trusted: bool) -> None:
    if url is None:
        if uuid is None:
            raise invalid(f"{where} has no URL, expected an http(s): or data: URL")
        # Its size is unknown, so is every token after it, and whichever worker is chosen need not have it.
        raise invalid(f"{where} names a uuid without data, expected an http(s): or data: URL beside it", "uuid")
    if uuid == "" and not trusted:
        raise invalid(f"{where}.uuid is empty, expected none or a unique name", "uuid")


def _first_reason(kind: MediaKind, uuid: str | None, trusted: bool) -> tuple[Reason | None, str | None]:
    if uuid and not trusted:
        return Reason.CLIENT_UUID, "the client's uuid was removed (KVROUTE_MEDIA_TRUST_UUID is off)"
    if kind is MediaKind.AUDIO:
        return Reason.AUDIO, "audio is routed by the text before it"
    return None, None


def _unsupported(part: dict[str, Any], kind: str, message: int, number: int, uuid: str | None) -> Found:
    """A medium engines may know and routing does not. Its URL, wherever it stands, still meets the fence."""
    audio = kind in ("input_audio", "audio", "audio_embeds")
    urls = []
    for key, value in part.items():
        inner = value.get("url") if isinstance(value, dict) else value
        if isinstance(inner, str) and (key.endswith("url") or key in _MEDIA_WORDS) and _is_remote(inner):
            urls.append(inner)
    if len(urls) > 1:
        raise invalid(f"messages[{message}].content[{number}] carries several URLs, expected one medium")
    if urls and len(urls[0]) > _URL_LIMIT:
        raise invalid(f"messages[{message}].content[{number}] has a URL over {_URL_LIMIT} characters")
    reason = Reason.CLIENT_UUID if uuid else Reason.AUDIO if audio else Reason.UNSUPPORTED_MEDIA
    return Found(
        MediaKind.AUDIO if audio else MediaKind.OTHER, message, number, urls[0] if urls else None, None, reason,
        f"content parts of type {kind[:_TYPE_LIMIT]!r} are routed by the text before them", replaceable=False,
    )  # fmt: skip


def _is_remote(value: str) -> bool:
    return _SCHEME.match(value) is not None and value[:5].lower() != "data:"


def _as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
