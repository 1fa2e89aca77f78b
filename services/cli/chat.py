"""A chat request from the command line: text, images and videos from files or URLs, and kvroute's headers.

Pure but for files.
"""

from __future__ import annotations

import base64
import mimetypes
import re
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from services.runtime.errors import KvrouteError
from services.runtime.settings import Settings

LARGEST_FILE = 64 << 20
_URL = re.compile(r"^(https?|data):", re.IGNORECASE)

Command = TypeVar("Command", bound=Callable[..., Any])


class BadMedium(KvrouteError):
    """An --image or --video that is neither a URL nor a readable file."""


CHAT_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--image", "images", multiple=True, metavar="FILE|URL", help="An image, before the text; repeatable."),
    click.option("--video", "videos", multiple=True, metavar="FILE|URL", help="A video, before the text; repeatable."),
    click.option("--system", default="", help="A system message."),
    click.option("--model", default="", help="Model; default: the first the gateway lists."),
    click.option("--url", default="", metavar="URL", help="Gateway; default: KVROUTE_GATEWAY_HOST and _PORT."),
    click.option("--api-key", envvar="KVROUTE_API_KEY", help="Sent as bearer token; also KVROUTE_API_KEY."),
    click.option("--request-id", default="", help="Id of the request; default: a new one."),
    click.option("--session", "session_id", default="", help="Session id (X-Session-Id)."),
    click.option("--salt", default="", help="Cache salt: shares no cache with other salts."),
    click.option("--identity", type=click.Choice(["url", "content", "validated"]), help="How images are told apart."),
    click.option("--deadline", type=click.FloatRange(min=0.1, max=600), help="Seconds the answer may take."),
)  # fmt: skip


def chat_options(*, text_required: bool = True) -> Callable[[Command], Command]:
    """Argument and options of commands that send a chat request."""

    def decorate(command: Command) -> Command:
        for option in reversed(CHAT_OPTIONS):
            command = option(command)
        return click.argument("text", nargs=-1, required=text_required)(command)

    return decorate


def content_of(text: str, images: Sequence[str], videos: Sequence[str] = ()) -> str | list[dict[str, Any]]:
    """The user message's content: images first, then videos, then the text. Raises BadMedium."""
    parts: list[dict[str, Any]] = [
        {"type": f"{kind}_url", f"{kind}_url": {"url": media_url(place, kind)}}
        for kind, places in (("image", images), ("video", videos))
        for place in places
    ]
    return [*parts, {"type": "text", "text": text}] if parts else text


def media_url(place: str, kind: str = "image") -> str:
    """A URL as it is, a file as a data: URI. Raises BadMedium."""
    if _URL.match(place):
        return place
    path = Path(place).expanduser()
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise BadMedium(f"{place} has {size} bytes, at most {LARGEST_FILE} are sent inline: give its URL instead")
        data = path.read_bytes()
    except OSError as error:
        raise BadMedium(
            f"--{kind} {place} is neither a URL (http, https, data) nor a readable file: {error.strerror}"
        ) from None
    found = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"data:{found};base64,{base64.b64encode(data).decode()}"


def body_of(
    model: str, text: str, images: Sequence[str], videos: Sequence[str], system: str, **more: Any
) -> dict[str, Any]:
    """The OpenAI body. ``more`` that is None is left out. Raises BadMedium."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": content_of(text, images, videos)})
    return {"model": model, "messages": messages} | {name: value for name, value in more.items() if value is not None}


def headers_of(
    request_id: str = "",
    session_id: str = "",
    salt: str = "",
    identity: str | None = None,
    deadline: float | None = None,
) -> dict[str, str]:
    """Kvroute's headers; the request always has an id."""
    headers = {
        "X-Request-Id": request_id or f"cli-{uuid.uuid4().hex[:16]}",
        "X-Session-Id": session_id,
        "X-Kvroute-Cache-Salt": salt,
        "X-Kvroute-Identity": identity or "",
        "X-Kvroute-Deadline-Ms": str(int(deadline * 1000)) if deadline else "",
    }
    return {name: value for name, value in headers.items() if value}


def gateway_url(settings: Settings, url: str) -> str:
    """The given gateway, or the one of the settings as seen from this machine."""
    if url:
        return url if "://" in url else f"http://{url}"
    host = settings.gateway_host
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"http://{host}:{settings.gateway_port}"
