"""The whole pipeline before two real engines: what is predicted is what they cached, and no medium answers for another.

For every request with no other of its prefix in flight, usable overlap times block size is the engine's cached_tokens.
"""

from __future__ import annotations

import asyncio
import base64
import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from services.worker.probe_requests import png_uri
from tests.vllm.conftest import Fleet, Told

pytestmark = pytest.mark.asyncio(loop_scope="session")
DRAW = random.Random(7)
VIDEOS = Path(__file__).parents[1] / "golden" / "video_files"


def text(words: int = 120) -> str:
    """Text nobody has asked about before."""
    return f"{uuid.uuid4().hex} " + "the quick brown fox jumps over the lazy dog " * (words // 9)


def part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def picture(height: int = 168, width: int = 224, shade: int | None = None) -> dict[str, Any]:
    shade = DRAW.randrange(256) if shade is None else shade
    return {"type": "image_url", "image_url": {"url": png_uri(height, width, shade)}}


def video(name: str) -> dict[str, Any]:
    data = base64.b64encode((VIDEOS / name).read_bytes()).decode()
    return {"type": "video_url", "video_url": {"url": f"data:video/{name.rpartition('.')[2]};base64,{data}"}}


async def ask_twice(fleet: Fleet, content: Any, **more: Any) -> tuple[Told, Told]:
    """Ask again: the second goes where the first went, and finds all but the last token's block."""
    first, second = await fleet.ask(content, **more), await fleet.ask(content, **more)
    for told in (first, second):
        assert told.cached_tokens == told.predicted_tokens, told
        assert told.exact, told
    assert second.worker == first.worker
    assert second.cached_tokens == (second.prompt_tokens - 1) // 16 * 16
    return first, second


async def test_both_engines_prove_the_same_contract(fleet: Fleet) -> None:
    contracts = [agent.life.contract for agent in fleet.agents.values() if agent.life and agent.life.contract]
    assert len(contracts) == 2
    assert contracts[0] == contracts[1]
    for modality in (contracts[0].text, contracts[0].image, contracts[0].video):
        assert modality.proven, modality.detail
    assert contracts[0].image.verbatim_identity
    assert contracts[0].video.verbatim_identity


async def test_text_images_and_several_images_are_found_again(fleet: Fleet) -> None:
    await ask_twice(fleet, text())
    await ask_twice(fleet, [part(text(60)), picture(), part(text())])
    await ask_twice(fleet, [part(text(60)), picture(), picture(112, 140), part(text())])
    await ask_twice(fleet, [picture(28, 28), picture(28, 28), part(text())], salt="a-salt")
    await ask_twice(fleet, [picture(), part(text())], stream=True)


async def test_a_prefix_with_an_image_is_found_under_another_question(fleet: Fleet) -> None:
    begin = [part(text(90)), picture()]
    await fleet.ask([*begin, part(text(30))])
    second = await fleet.ask([*begin, part(text(30))])
    assert second.cached_tokens == second.predicted_tokens
    assert second.cached_tokens > 128


async def test_a_video_is_found_again_and_another_one_is_not_it(fleet: Fleet) -> None:
    begin, end = part(text(60)), part(text(60))
    first, second = await ask_twice(fleet, [begin, video("vp9.mp4"), end])
    other = await fleet.ask([begin, video("h264.mp4"), end])
    assert other.exact, other
    assert other.cached_tokens == other.predicted_tokens < second.cached_tokens
    assert first.cached_tokens == 0
    await ask_twice(fleet, [part(text(60)), video("vp9.webm"), picture(), part(text(60))])


async def test_a_url_whose_content_changed_gets_nothing_of_what_it_was(fleet: Fleet) -> None:
    name = f"{uuid.uuid4().hex}.png"
    content = [
        part(text(60)), {"type": "image_url", "image_url": {"url": f"{fleet.pictures_url}/{name}"}}, part(text(60)),
    ]  # fmt: skip
    fleet.pictures[name] = png_of(10)
    first, same = await ask_twice(fleet, content, identity="content")
    fleet.pictures[name] = png_of(200)
    changed = await fleet.ask(content, identity="content")
    assert changed.cached_tokens == changed.predicted_tokens < same.cached_tokens
    assert first.exact


async def test_client_uuids_in_our_form_name_nothing(fleet: Fleet) -> None:
    begin, end = part(text(60)), part(text(60))
    forged = {"uuid": f"{0xABC:016x}" + "0" * 48}
    first = await fleet.ask([begin, {**picture(shade=1), **forged}, end])
    other = await fleet.ask([begin, {**picture(shade=99), **forged}, end])
    assert other.cached_tokens < 128 <= first.prompt_tokens
    assert other.reason == "client_uuid"


async def test_two_tenants_share_no_image(fleet: Fleet) -> None:
    content = [picture(), part(text())]
    await ask_twice(fleet, content, key="key-a")
    other = await fleet.ask(content, key="key-b")
    assert other.cached_tokens == other.predicted_tokens == 0
    await ask_twice(fleet, content, key="key-b")


async def test_under_eviction_predictions_hold(fleet: Fleet) -> None:
    """Both caches together hold some 16,000 tokens; this is more."""
    asked = [[part(text(330)), picture(), part(text(60))] for _ in range(40)]
    for content in asked:
        told = await fleet.ask(content)
        assert told.cached_tokens == told.predicted_tokens, told
    found = []
    for content in [asked[-1], asked[0], asked[-2], asked[1], asked[20]]:
        told = await fleet.ask(content)
        assert told.cached_tokens == told.predicted_tokens, told
        found.append(told.cached_tokens)
    assert found[0] > 0
    assert 0 in found


async def test_a_worker_that_is_killed_is_gone_and_comes_back_empty(fleet: Fleet) -> None:
    content = [picture(), part(text())]
    first, _ = await ask_twice(fleet, content)
    victim = first.worker
    agent, engine = fleet.agents[victim], fleet.engines[victim]
    assert agent.life is not None
    epoch = agent.life.epoch
    await engine.kill()
    async with asyncio.timeout(30):
        while agent.registered:  # noqa: ASYNC110 - somebody else's state
            await asyncio.sleep(0.1)
    await asyncio.sleep(8)
    elsewhere = await fleet.ask(content)
    assert elsewhere.worker != victim
    assert elsewhere.cached_tokens == elsewhere.predicted_tokens
    await engine.start()
    async with asyncio.timeout(120):
        while not agent.registered:  # noqa: ASYNC110 - somebody else's state
            await asyncio.sleep(0.1)
    assert agent.life.epoch > epoch
    await asyncio.sleep(3)
    for _ in range(4):
        await ask_twice(fleet, [picture(), part(text())])


def png_of(shade: int) -> bytes:
    return base64.b64decode(png_uri(168, 224, shade).partition(",")[2])
