"""Layouts whose rules are not known are proven further: at the edges of blocks, and no further than was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from schemas.media import MediaKind
from schemas.worker import Contract
from services.kv.address import Span, addresses
from services.kv.sampling import Loader, Sampling
from services.layout.view import View, ViewSpan
from services.worker.edge_probes import EDGES, GENERIC_SIZES, generic_image_probes, openings
from services.worker.edges import clip
from services.worker.engine import EngineError
from services.worker.probes import Subject, prove
from tests.unit.worker.test_probes import ToyEngine, ToyLayout, shapes_of

SUBJECT = Subject("m", "processor/toy", block_size=16, generic=True)
IDENTITY = 0xABC


class Ranges:
    """The events of an engine whose media begin and end so many tokens before and after where ToyLayout has them."""

    def __init__(self, engine: ToyEngine, begins: int = 0, ends: int = 0, *, verbatim: bool = True) -> None:
        self.engine = engine
        self.begins = begins
        self.ends = ends
        self.verbatim = verbatim
        self.identities: list[int] = []

    def expect(self, identity: int) -> None:
        self.identities.append(identity)

    async def saw(self, identity: int, expected: Sequence[int], seconds: float) -> tuple[bool, bool]:
        body = self.engine.completed[-1]
        view = ToyLayout().view(body, shapes_of(body))
        ranges = [
            Span(span.offset + self.begins, span.length + self.ends - self.begins, identity) for span in view.spans
        ]
        return self.verbatim, set(addresses(view.token_ids, 16, ranges)).issuperset(expected)


async def proven(
    begins: int = 0, ends: int = 0, *, verbatim: bool = True, subject: Subject = SUBJECT,
    engine: ToyEngine | None = None,
) -> tuple[Contract, Ranges]:
    engine = engine or ToyEngine()
    ranges = Ranges(engine, begins, ends, verbatim=verbatim)
    return await prove(engine, ToyLayout(), subject, ranges, IDENTITY), ranges


async def test_the_same_range_is_proven_at_every_edge() -> None:
    contract, ranges = await proven()
    assert (contract.image.proven, contract.image.verbatim_identity, contract.image.detail) == (True, True, None)
    assert len(set(ranges.identities)) == len(ranges.identities) == 1 + len(EDGES)


@pytest.mark.parametrize(("begins", "ends"), [(-1, 0), (1, 0), (0, 1), (0, -1), (-2, 2), (-1, -1), (2, 0)])
async def test_another_range_shows_at_one_of_them(begins: int, ends: int) -> None:
    contract, _ = await proven(begins, ends)
    assert not contract.image.proven
    assert "the media range is not the engine's" in (contract.image.detail or "")


async def test_one_request_would_often_not_have_shown_it() -> None:
    contract, _ = await proven(-1, 0, subject=replace(SUBJECT, generic=False))
    assert contract.image.proven


async def test_exact_is_only_what_is_no_larger_and_no_more_than_what_was_asked() -> None:
    contract, _ = await proven()
    height, width = GENERIC_SIZES[-1]
    assert (contract.image.max_pixels, contract.image.max_items) == (height * width, 4)


async def test_what_the_engine_refused_is_not_covered() -> None:
    def small_only(tokens: list[int], body: dict[str, Any]) -> list[int]:
        if any((shape.height or 0) * (shape.width or 0) > 1_000_000 for shape in shapes_of(body)):
            raise EngineError(400, "too many tokens")
        return tokens

    contract, _ = await proven(engine=ToyEngine(small_only))
    assert (contract.image.proven, contract.image.max_pixels) == (True, 767 * 1023)


async def test_tokens_that_depend_on_what_a_picture_shows_are_noticed() -> None:
    """Our side is never told: it is asked about a grey picture."""

    def by_bytes(tokens: list[int], body: dict[str, Any]) -> list[int]:
        return [*tokens, 7] if len(str(body)) > 250_000 else tokens

    contract, _ = await proven(engine=ToyEngine(by_bytes))
    assert not contract.image.proven
    assert "noisy" in (contract.image.detail or "")


async def test_without_events_no_range_is_proven() -> None:
    for contract in ((await proven(verbatim=False))[0], await prove(ToyEngine(), ToyLayout(), SUBJECT, None, 1)):
        assert contract.text.proven
        assert not contract.image.proven
        assert contract.image.detail


async def test_an_engine_that_cant_run_the_probe_proves_nothing() -> None:
    engine = ToyEngine()

    async def refuse(body: dict[str, Any], headers: Any = None) -> dict[str, Any]:
        raise EngineError(400, "busy")

    engine.complete = refuse  # type: ignore[method-assign]
    contract, _ = await proven(engine=engine)
    assert not contract.image.proven
    assert "busy" in (contract.image.detail or "")


async def test_where_no_prompt_shows_the_edge_nothing_is_proven() -> None:
    class Fixed(ToyLayout):
        def view(self, body: Any, media: Any = (), *, family: Any = None) -> View:
            view = super().view(body, media)
            return replace(view, spans=[ViewSpan(0, 5, span.length, span.length) for span in view.spans])

    engine = ToyEngine()
    contract = await prove(engine, Fixed(), SUBJECT, AlwaysEqual(), IDENTITY)
    assert not contract.image.proven
    assert "no prompt was found" in (contract.image.detail or "")


class AlwaysEqual:
    def expect(self, identity: int) -> None:
        pass

    async def saw(self, identity: int, expected: Sequence[int], seconds: float) -> tuple[bool, bool]:
        return True, True


async def test_why_there_are_no_images_is_said() -> None:
    contract, _ = await proven(subject=replace(SUBJECT, lays_images=False, no_images="transformers is not installed"))
    assert contract.image.detail == "transformers is not installed"


def test_the_probes_stay_small() -> None:
    probes = generic_image_probes("m")
    assert [probe.pixels for probe in probes][-1] == max(probe.pixels for probe in probes)
    assert max(len(str(probe.body)) for probe in probes) < 400_000
    assert len(set(openings(16))) == 128


def test_a_clip_is_a_part_with_its_shape() -> None:
    part, shape = clip(Sampling.usual(Loader.QWEN2_VL))("u1")
    assert (part["type"], part["uuid"], shape.kind) == ("video_url", "u1", MediaKind.VIDEO)
