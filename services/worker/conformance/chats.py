"""The chats of the checks, with what an engine must announce for them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from schemas.media import MediaKind
from services.kv.address import Span, addresses
from services.kv.identity import engine_uuid
from services.layout.shapes import MediaShape
from services.layout.view import View
from services.worker.probe_requests import Body, png_uri

FILLER = "the quick brown fox jumps over the lazy dog and runs away from it "
IMAGE = (168, 224)
OTHER_IMAGE = (112, 140)
"""(height, width)."""


@dataclass(frozen=True, slots=True)
class Medium:
    """A medium of a chat: its URI, its shape, and the identity the engine is told."""

    uri: str
    shape: MediaShape
    identity: int


@dataclass(frozen=True, slots=True)
class Chat:
    """One request of a check."""

    body: Body
    media: tuple[Medium, ...] = ()
    salt: str | None = None
    lora: str | None = None

    @property
    def laid_out(self) -> Body:
        """What our layout is asked. Frames are the video's: what is said of them makes no other layout."""
        return {name: value for name, value in self.body.items() if name != "media_io_kwargs"}

    @property
    def shapes(self) -> tuple[MediaShape, ...]:
        """Of its media, in prompt order."""
        return tuple(medium.shape for medium in self.media)


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is expected of a chat: its addresses, and how many of its tokens can be cached."""

    addresses: tuple[int, ...]
    prompt_tokens: int
    block_size: int
    spans: tuple[Span, ...] = ()

    def cached_tokens(self, held: set[int]) -> int:
        """What the engine must report as cached when it holds these addresses: the last token is always computed."""
        overlap = 0
        for address in self.addresses:
            if address not in held:
                break
            overlap += 1
        return min(overlap, (self.prompt_tokens - 1) // self.block_size) * self.block_size


def predict(chat: Chat, view: View, block_size: int) -> Predicted:
    """The addresses of a chat whose view this is. The view must be exact."""
    spans = [Span(span.offset, span.length, chat.media[span.item].identity) for span in view.spans]
    found = addresses(view.token_ids, block_size, spans, lora=chat.lora, cache_salt=chat.salt)
    return Predicted(tuple(found), len(view.token_ids), block_size, tuple(spans))


def text_of(tokens: int, mark: str) -> str:
    """About so many tokens of text that begins with its mark, so that no two marks share a block."""
    return f"{mark}: " + FILLER * max(1, tokens // 14)


def image(identity: int, size: tuple[int, int] = IMAGE, shade: int = 60) -> Medium:
    """A grey image."""
    return Medium(png_uri(*size, shade), MediaShape(MediaKind.IMAGE, *size), identity)


def chat(
    model: str, text: str, media: Sequence[Medium] = (), *, salt: str | None = None, lora: str | None = None,
    before: Sequence[Body] = (), **more: Any,
) -> Chat:  # fmt: skip
    """One user turn, media before its text, after the turns ``before``; one token is answered."""
    parts: list[Body] = [
        {"type": f"{medium.shape.kind}_url", f"{medium.shape.kind}_url": {"url": medium.uri},
         "uuid": engine_uuid(medium.identity)}
        for medium in media
    ]  # fmt: skip
    content: Any = [*parts, {"type": "text", "text": text}] if parts else text
    body: Body = {
        "model": lora or model, "messages": [*before, {"role": "user", "content": content}], "max_tokens": 1,
        "temperature": 0, **more,
    }  # fmt: skip
    if salt is not None:
        body["cache_salt"] = salt
    return Chat(body, tuple(media), salt, lora)
