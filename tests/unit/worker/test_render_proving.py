"""What an agent asks an engine whose layouts are asked from it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from schemas.media import MediaKind
from services.kv.reason import Reason
from services.layout.render.rendered import NotRendered, Place, Rendered
from services.layout.shapes import MediaShape
from services.layout.view import View
from services.runtime.offload import run_in_thread
from services.worker.engine import EngineError
from services.worker.matching import Answer
from services.worker.probe_requests import image_probe, text_probes
from services.worker.render_proving import Digests, RenderLayout, Runnable

TEXT = text_probes("m")[0]
IMAGE = image_probe("m", "i", [(32, 32)])


class Client:
    def __init__(self, said: Rendered | NotRendered) -> None:
        self.said = said
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    async def render(self, url: str, body: Mapping[str, Any]) -> Rendered:
        self.asked.append((url, body))
        if isinstance(self.said, NotRendered):
            raise self.said
        return self.said


async def view(client: Client, body: dict[str, Any], media: tuple[MediaShape, ...] = ()) -> View:
    layout = RenderLayout(client, "http://e", asyncio.get_running_loop())  # type: ignore[arg-type]
    found: View = await run_in_thread(partial(layout.view, body, media))
    return found


async def test_a_rendering_is_our_layout() -> None:
    client = Client(Rendered([1, 2, 3], {MediaKind.IMAGE: [Place(1, 2)]}))
    found = await view(client, {"messages": []}, (MediaShape(MediaKind.IMAGE, 32, 32),))
    assert (found.token_ids, found.exact, found.spans[0].length) == ([1, 2, 3], True, 2)
    assert client.asked == [("http://e", {"messages": [], "mm_payload": "none"})]


async def test_an_engine_need_not_parse_tool_calls() -> None:
    client = Client(Rendered([1]))
    await view(client, {"messages": [], "tools": [{}]})
    assert client.asked[0][1]["tool_choice"] == "none"


async def test_what_is_not_rendered_is_not_exact() -> None:
    found = await view(Client(NotRendered(Reason.CONTRACT_MISSING, "nobody")), {})
    assert (found.reason, found.detail, found.exact) == (Reason.CONTRACT_MISSING, "nobody", False)


class Engine:
    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        return list(range(body["tokens"]))

    async def complete(self, body: dict[str, Any], headers: Any = None) -> dict[str, Any]:
        return {**body, "headers": headers}


async def test_a_prompt_that_the_engine_would_not_run_is_a_refusal() -> None:
    bounded, unbounded = Runnable(Engine(), 5), Runnable(Engine(), None)
    assert len(await bounded.tokenize({"tokens": 4})) == 4
    with pytest.raises(EngineError) as caught:
        await bounded.tokenize({"tokens": 5})
    assert caught.value.status == 400
    assert len(await unbounded.tokenize({"tokens": 9})) == 9
    assert await bounded.complete({"a": 1}, {"h": "1"}) == {"a": 1, "headers": {"h": "1"}}


def test_a_digest_is_of_one_kinds_answers_in_their_order() -> None:
    def names(*answers: Answer) -> list[str]:
        digests = Digests()
        for answer in answers:
            digests.take(answer)
        return [digests.name(None), digests.name(MediaKind.IMAGE)]

    text, image = Answer(TEXT, [1, 2]), Answer(IMAGE, [3])
    assert names(text, image) == names(image, text)
    assert names(text)[0] == names(text, image)[0]
    different = [
        names(text)[0], names(Answer(TEXT, [12]))[0], names(Answer(TEXT, refusal="no"))[0], names(text, text)[0],
        names()[0],
    ]  # fmt: skip
    assert len(set(different)) == len(different)
