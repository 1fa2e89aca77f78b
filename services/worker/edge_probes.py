"""Probes of layouts that other people's code makes: nothing of their rules is known, so more is asked. Pure.

Where a family's rule was checked against the engine's own code, a few sizes tell whether it is applied. Of a processor
only what it says is known: thin and odd pictures, a noisy one (its tokens might depend on what it shows), several
media; and where an engine's range of a medium begins and ends, which shows only at the edge of a block.
"""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Callable, Iterator
from typing import Any

from PIL import Image

from schemas.media import MediaKind
from services.layout.shapes import MediaShape
from services.layout.view import ViewSpan
from services.worker.probe_requests import Body, Probe, image_probe

GENERIC_SIZES = ((64, 2048), (2048, 64), (333, 517), (767, 1023), (2160, 3840))
"""(height, width) beside the usual ones; the last is the largest picture that will be exact."""

SEVERAL = ((333, 517), (32, 32), (767, 1023), (112, 80))
NOISY = (224, 336)

Part = Callable[[str], tuple[Body, MediaShape]]
"""Makes a medium's content part with a uuid, and its shape."""


def generic_image_probes(model: str) -> list[Probe]:
    """Odd, thin and large pictures, a noisy one, four in one turn. The larger ones last."""
    small, large = GENERIC_SIZES[:-1], GENERIC_SIZES[-1]
    probes = [image_probe(model, f"image {width}x{height}", [(height, width)]) for height, width in small]
    probes += [noisy_probe(model), image_probe(model, "four images", SEVERAL)]
    return [*probes, image_probe(model, "image {1}x{0}".format(*large), [large])]


def noisy_probe(model: str) -> Probe:
    """One picture in which no two pixels are alike."""
    height, width = NOISY
    buffer = io.BytesIO()
    noise = random.Random(1).randbytes(height * width * 3)
    Image.frombytes("RGB", (width, height), noise).save(buffer, "PNG")
    uri = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    content: list[Body] = [
        {"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "What is it?"}
    ]  # fmt: skip
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    return Probe(f"noisy image {width}x{height}", body, (MediaShape(MediaKind.IMAGE, height, width),))


def openings(block_size: int) -> Iterator[str]:
    """Texts of many lengths, in any vocabulary: words for the way, signs for single steps."""
    for words in range(2 * block_size):
        for signs in range(4):
            yield "Look:" + " one" * words + "." * signs


def edge_probe(model: str, part: Part, uuid: str, before: str, block_size: int) -> Probe:
    """A medium after some text, and text behind it that fills some blocks; one token is answered."""
    medium, shape = part(uuid)
    content: list[dict[str, Any]] = [
        {"type": "text", "text": before}, medium,
        {"type": "text", "text": "two three four five six seven eight nine ten " * (block_size // 8 + 2)},
    ]  # fmt: skip
    body: Body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}
    return Probe(f"a medium after {before!r}"[:200], body, (shape,))


EDGES: tuple[tuple[str, Callable[[ViewSpan, int], bool]], ...] = (
    ("begins earlier", lambda span, size: span.offset % size == 0),
    ("begins later", lambda span, size: span.offset % size == size - 1),
    ("ends later", lambda span, size: (span.offset + span.length) % size == 0),
    ("ends earlier", lambda span, size: (span.offset + span.length) % size == 1 % size),
)
"""How an engine's range may differ from ours, and where in a block a medium must stand for that to change a block."""
