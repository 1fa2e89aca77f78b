"""The chats an engine is asked to tokenise: small in bytes, wide in what they exercise. Pure."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from PIL import Image

from schemas.media import MediaKind
from services.layout.shapes import MediaShape

Body = dict[str, Any]
SMALL_IMAGES = ((32, 32), (80, 112))
"""(height, width) of the smallest grid and of one that is not square."""

MIDDLE_IMAGE = (1008, 1344)
PROBE_PIXELS_LIMIT = 20_000_000
"""Larger images are not sent to an engine only to be measured."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One chat and the shapes of its media, in prompt order."""

    name: str
    body: Body
    shapes: tuple[MediaShape, ...] = ()

    @property
    def pixels(self) -> int:
        """Pixels of the largest medium; of a video, those of all frames the model sees."""
        return max(map(_pixels, self.shapes), default=0)


def _pixels(shape: MediaShape) -> int:
    frames = 1 if shape.frame_indices is None else len(shape.frame_indices)
    return frames * (shape.height or 0) * (shape.width or 0)


def text_probes(model: str) -> list[Probe]:
    """A lone question, a system prompt with several turns, tools; text that tokenises in more than one way."""
    user: Body = {"role": "user", "content": "What is 2+2?"}
    turns: list[Body] = [
        {"role": "system", "content": "You are terse.  Answer in one line.\n"},
        {"role": "user", "content": [{"type": "text", "text": "Größe? 你好, naïve café 🙂\t\tx"}]},
        {"role": "assistant", "content": "Yes.\n\n```python\nprint( 1 )\n```"},
        {"role": "user", "content": "And 3.14159 e+10?"},
    ]
    tool: Body = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather of a place",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
    return [
        Probe("one user turn", _body(model, [user])),
        Probe("system and several turns", _body(model, turns)),
        Probe("tools", {**_body(model, [turns[0], user]), "tools": [tool]}),
    ]


def image_probes(model: str, pixel_bound: int | None) -> list[Probe]:
    """The smallest grid, an odd one, two images in one turn, a middle one, and one above the model's pixel bound."""
    probes = [image_probe(model, f"image {width}x{height}", [(height, width)]) for height, width in SMALL_IMAGES]
    probes.append(image_probe(model, "two images", SMALL_IMAGES))
    probes.append(image_probe(model, "image {1}x{0}".format(*MIDDLE_IMAGE), [MIDDLE_IMAGE]))
    above = above_bound(pixel_bound)
    if above is not None:
        probes.append(image_probe(model, f"image {above[1]}x{above[0]}, above the pixel bound", [above]))
    return probes


def above_bound(pixel_bound: int | None) -> tuple[int, int] | None:
    """A 4:3 image a little larger than the bound; None without a bound, or when it is too large to send."""
    if pixel_bound is None:
        return None
    height = int((pixel_bound * 0.75) ** 0.5) + 64
    width = height * 4 // 3 + 1
    return (height, width) if height * width <= PROBE_PIXELS_LIMIT else None


def image_probe(model: str, name: str, sizes: Iterable[tuple[int, int]]) -> Probe:
    """One turn with images of these (height, width), text between and after."""
    content: list[Body] = []
    shapes = []
    for number, (height, width) in enumerate(sizes):
        content.append({"type": "text", "text": f"Picture {number}: "})
        content.append({"type": "image_url", "image_url": {"url": png_uri(height, width, 40 * number)}})
        shapes.append(MediaShape(MediaKind.IMAGE, height, width))
    content.append({"type": "text", "text": "What is it?"})
    return Probe(name, _body(model, [{"role": "user", "content": content}]), tuple(shapes))


def identity_probe(model: str, uuid: str, block_size: int) -> Probe:
    """A request that fills some blocks around one image, whose uuid must come back in the KV events."""
    height, width = SMALL_IMAGES[1]
    filler = "one two three four five six seven eight nine ten " * (block_size // 8 + 1)
    content: list[Body] = [
        {"type": "image_url", "image_url": {"url": png_uri(height, width, 7)}, "uuid": uuid},
        {"type": "text", "text": filler},
    ]
    body = {**_body(model, [{"role": "user", "content": content}]), "max_tokens": 1, "temperature": 0}
    return Probe("identity", body, (MediaShape(MediaKind.IMAGE, height, width),))


def png_uri(height: int, width: int, shade: int = 0) -> str:
    """A grey PNG of this size as a data: URI."""
    buffer = io.BytesIO()
    Image.new("L", (width, height), shade).convert("RGB" if height * width < 1 << 20 else "L").save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _body(model: str, messages: list[Body]) -> Body:
    return {"model": model, "messages": messages}
