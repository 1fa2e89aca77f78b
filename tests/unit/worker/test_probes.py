"""Proving a contract: equal in every probe, or not proven and why. An engine's error is an outcome."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from schemas.media import MediaKind
from schemas.worker import Contract
from services.kv.address import Span, addresses
from services.kv.reason import Reason
from services.layout.card import ModelCard
from services.layout.layouter import Layouter
from services.layout.shapes import MediaShape
from services.layout.view import View, ViewSpan
from services.worker import probes as probes_module
from services.worker.engine import EngineError
from services.worker.matching import first_difference
from services.worker.probe_requests import above_bound, image_probes, png_uri, text_probes
from services.worker.probes import Subject, prove

MODELS = Path(__file__).parents[2] / "models"
SUBJECT = Subject("m", "toy", block_size=4, pixel_bound=500_000)
IDENTITY = 0xABC


class ToyLayout:
    """One token a character, 1 + pixels // 1000 tokens an image."""

    def __init__(self, shift: int = 0, reason: Reason | None = None) -> None:
        self.shift = shift
        self.reason = reason

    def view(self, body: dict[str, Any], media: Sequence[MediaShape] = (), *, family: Any = None) -> View:
        tokens: list[int] = []
        spans: list[ViewSpan] = []
        left = list(media)
        for message in body["messages"]:
            content = message["content"]
            for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                if part["type"] == "text":
                    tokens += [ord(character) for character in part["text"]]
                else:
                    shape = left.pop(0)
                    length = 1 + (shape.height or 0) * (shape.width or 0) // 1000
                    spans.append(ViewSpan(len(spans), len(tokens) + self.shift, length, length))
                    tokens += [7] * length
        tokens += [len(body.get("tools", []))]
        return View(tokens, spans, len(tokens), self.reason)


class ToyEngine:
    """Lays out as ToyLayout does, measuring the images it is sent; ``change`` makes it differ."""

    def __init__(self, change: Callable[[list[int], dict[str, Any]], list[int]] | None = None) -> None:
        self.change = change or (lambda tokens, body: tokens)
        self.completed: list[dict[str, Any]] = []

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        return self.change(ToyLayout().view(body, shapes_of(body)).token_ids, body)

    async def complete(self, body: dict[str, Any], headers: Any = None) -> dict[str, Any]:
        self.completed.append(body)
        return {}


class ToyWatch:
    """The events of ToyEngine: they carry the identity back (or not) for the true media range."""

    def __init__(self, engine: ToyEngine, *, verbatim: bool = True) -> None:
        self.engine = engine
        self.verbatim = verbatim
        self.expected: set[int] = set()

    def expect(self, identity: int) -> None:
        assert not self.engine.completed
        self.expected.add(identity)

    async def saw(self, identity: int, expected: Sequence[int], seconds: float) -> tuple[bool, bool]:
        (body,) = self.engine.completed
        assert body["max_tokens"] == 1
        assert body["messages"][0]["content"][0]["uuid"] == f"{identity:016x}" + "0" * 48
        view = ToyLayout().view(body, shapes_of(body))
        spans = [Span(span.offset, span.length, identity) for span in view.spans]
        held = addresses(view.token_ids, 4, spans)
        return (True, set(held).issuperset(expected)) if self.verbatim else (False, False)


def shapes_of(body: dict[str, Any]) -> list[MediaShape]:
    shapes = []
    for message in body["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else []:
            if part["type"] == "image_url":
                width, height = Image.open(io.BytesIO(bytes_of(part["image_url"]["url"]))).size
                shapes.append(MediaShape(MediaKind.IMAGE, height, width))
    return shapes


def bytes_of(uri: str) -> bytes:
    return base64.b64decode(uri.partition(",")[2])


async def proven(
    engine: ToyEngine | None = None, layout: ToyLayout | None = None, *, verbatim: bool = True,
    subject: Subject = SUBJECT,
) -> Contract:  # fmt: skip
    engine = engine or ToyEngine()
    return await prove(engine, layout or ToyLayout(), subject, ToyWatch(engine, verbatim=verbatim), IDENTITY)


async def test_equal_in_all_probes_is_proven() -> None:
    contract = await proven()
    assert (contract.text.proven, contract.text.variant, contract.text.detail) == (True, "toy", None)
    assert (contract.image.proven, contract.image.verbatim_identity, contract.image.max_pixels) == (True, True, None)
    assert not contract.video.proven
    assert "has no videos" in (contract.video.detail or "")


async def test_one_other_token_is_a_mismatch_and_both_lists_are_shown() -> None:
    def with_tools_apart(tokens: list[int], body: dict[str, Any]) -> list[int]:
        return [*tokens[:-1], 99] if "tools" in body else tokens

    contract = await proven(ToyEngine(with_tools_apart))
    assert not contract.text.proven
    assert "probe tools: the token lists part at" in (contract.text.detail or "")
    assert "ours [1]" in (contract.text.detail or "")
    assert "the engine's [99]" in (contract.text.detail or "")
    assert contract.image.proven


async def test_another_count_of_image_tokens_leaves_text_proven() -> None:
    def more_pads(tokens: list[int], body: dict[str, Any]) -> list[int]:
        return [*tokens, 7] if len(shapes_of(body)) == 2 else tokens

    contract = await proven(ToyEngine(more_pads))
    assert contract.text.proven
    assert (contract.image.proven, contract.image.variant) == (False, "toy")
    assert "probe two images" in (contract.image.detail or "")


async def test_an_engines_error_is_an_outcome() -> None:
    def no_tools(tokens: list[int], body: dict[str, Any]) -> list[int]:
        if "tools" in body:
            raise EngineError(400, "/tokenize answered 400: no tools here")
        return tokens

    contract = await proven(ToyEngine(no_tools))
    assert not contract.text.proven
    assert "no tools here" in (contract.text.detail or "")


async def test_a_busy_engine_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes_module, "TRY_AGAIN_SECONDS", (0.0, 0.0))
    asked = []

    def busy_at_first(tokens: list[int], body: dict[str, Any]) -> list[int]:
        asked.append(body)
        if len(asked) < 3:
            raise EngineError(503, "busy")
        return tokens

    assert (await proven(ToyEngine(busy_at_first))).text.proven


async def test_an_image_too_large_for_the_engine_is_a_bound() -> None:
    def small_only(tokens: list[int], body: dict[str, Any]) -> list[int]:
        if any((shape.height or 0) * (shape.width or 0) > 20_000 for shape in shapes_of(body)):
            raise EngineError(400, "too many tokens")
        return tokens

    contract = await proven(ToyEngine(small_only))
    assert (contract.image.proven, contract.image.max_pixels) == (True, 80 * 112)


async def test_what_we_cant_lay_out_ourselves_is_not_proven() -> None:
    contract = await proven(layout=ToyLayout(reason=Reason.TEMPLATE_MISSING))
    assert not contract.text.proven
    assert "template_missing" in (contract.text.detail or "")


async def test_an_identity_that_does_not_come_back_is_said() -> None:
    contract = await proven(verbatim=False)
    assert (contract.image.proven, contract.image.verbatim_identity) == (True, False)
    assert "did not come back" in (contract.image.detail or "")


async def test_an_identity_at_another_range_is_a_mismatch() -> None:
    contract = await proven(layout=ToyLayout(shift=4))
    assert (contract.image.proven, contract.image.verbatim_identity) == (False, True)


async def test_an_engine_that_cant_run_the_probe_has_proven_its_layout_only() -> None:
    engine = ToyEngine()

    async def refuse(body: dict[str, Any], headers: Any = None) -> dict[str, Any]:
        raise EngineError(400, "busy")

    engine.complete = refuse  # type: ignore[method-assign]
    contract = await proven(engine)
    assert (contract.image.proven, contract.image.verbatim_identity) == (True, None)
    assert "busy" in (contract.image.detail or "")


async def test_without_events_the_identity_is_not_asked_for() -> None:
    engine = ToyEngine()
    contract = await prove(engine, ToyLayout(), SUBJECT, None, IDENTITY)
    assert (contract.image.proven, contract.image.verbatim_identity) == (True, None)
    assert engine.completed == []


async def test_a_model_without_images_is_asked_for_none() -> None:
    contract = await proven(subject=Subject("m", "text", 4, lays_images=False))
    assert contract.text.proven
    assert contract.image.detail == "layout text has no images"


def test_the_probes_are_small_in_bytes_and_reach_beyond_the_bound() -> None:
    probes = image_probes("m", 12_845_056)
    assert max(probe.pixels for probe in probes) > 12_845_056
    assert max(len(str(probe.body)) for probe in probes) < 150_000
    assert above_bound(30_000_000) is None
    assert len(image_probes("m", None)) == len(probes) - 1


@pytest.mark.parametrize("size", [(32, 32), (80, 112), (1000, 2000)])
def test_a_png_has_the_size_it_says(size: tuple[int, int]) -> None:
    image = Image.open(io.BytesIO(bytes_of(png_uri(*size, 9))))
    assert (image.height, image.width, image.format) == (*size, "PNG")


@pytest.mark.parametrize(
    ("ours", "theirs", "at"), [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([], [5], 0)]
)
def test_where_two_lists_part(ours: list[int], theirs: list[int], at: int | None) -> None:
    found = first_difference(ours, theirs)
    assert found is None if at is None else f"part at {at}:" in (found or "")


@pytest.mark.parametrize("model", sorted(folder.name for folder in MODELS.iterdir() if folder.is_dir()))
def test_our_layouts_can_lay_out_every_probe(model: str) -> None:
    layouter = Layouter(ModelCard.load(MODELS / model, "m"))
    for probe in [*text_probes("m"), *image_probes("m", None)]:
        assert layouter.view(probe.body, probe.shapes).exact, probe.name
