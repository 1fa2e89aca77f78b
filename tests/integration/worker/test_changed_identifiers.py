"""An engine that calls media by names of its own, and its agent: whose they are is known, or nothing is claimed."""

from __future__ import annotations

import io
from typing import Any

import orjson
import pytest
from PIL import Image

from schemas.lifecycle import LifecycleEvent
from schemas.media import MediaKind
from schemas.work import SampledFrames, WorkMedia
from services.kv.address import Span, addresses
from services.kv.frames import FRAMES_TYPE, pack_frames
from services.kv.sampling import Loader, Sampling
from services.layout.layouter import Layouter
from services.layout.shapes import MediaShape
from services.runtime.blobs import Blobs
from services.runtime.settings import Settings
from services.worker.clips import Clip, mp4, png_frame
from services.worker.video_probes import shape_of
from tests.integration.worker.conftest import Fleet, StartFleet

LONG = "the quick brown fox jumps over the lazy dog " * 8
CHANGED = {"image": {"rgba_background_color": [0, 0, 0]}}
CLIP = Clip(8, 112, 168)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"video_forward_frames": ("m",)})


class Asked:
    """A request with one medium, as a router would send it."""

    def __init__(self, layouter: Layouter, part: dict[str, Any], shape: MediaShape, identity: int) -> None:
        content = [{"type": "text", "text": LONG}, part, {"type": "text", "text": LONG}]
        body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 1}
        view = layouter.view(body, [shape])
        (span,) = view.spans
        self.spans = [Span(span.offset, span.length, identity)]
        self.body = orjson.dumps(body).decode()
        self.addresses = addresses(view.token_ids, 16, self.spans)
        self.usable = (len(view.token_ids) - 1) // 16 * 16

    def work(self, **more: Any) -> dict[str, Any]:
        (span,) = self.spans
        last = -(-(span.offset + span.length) // 16)
        medium = WorkMedia(
            message=0, part=1, identity=span.identity, tokens=span.length, end=span.offset + span.length, **more
        )
        return {"body": self.body, "media": [medium], "addresses": self.addresses[:last]}


def image(layouter: Layouter, identity: int) -> Asked:
    part = {"type": "image_url", "image_url": {"url": "https://h/a.png"}}
    return Asked(layouter, part, MediaShape(MediaKind.IMAGE, 168, 224), identity)


async def ask(running: Fleet, **requests: dict[str, Any]) -> dict[str, Any]:
    """Run all at once; what the engine found cached of each."""
    for name, given in requests.items():
        await running.give(name, **given)
    ends = await running.ended(*requests)
    assert {end.event for end in ends.values()} == {LifecycleEvent.FINISHED}, ends
    return {name: ends[name].usage and ends[name].usage.cached_tokens for name in requests}


async def picture(running: Fleet, shade: int) -> Any:
    buffer = io.BytesIO()
    Image.new("RGB", (224, 168), (shade, 8, 7)).save(buffer, "PNG")
    return await Blobs.of(running.settings).put(buffer.getvalue(), "image/png")


async def test_sessions_tell_requests_of_the_same_tokens_apart(fleet: StartFleet, layouter: Layouter) -> None:
    running = await fleet(media_io_kwargs=CHANGED, max_num_batched_tokens=64)
    contract = (await running.registrations())[0].contract
    assert contract is not None
    assert (contract.image.proven, contract.image.verbatim_identity, contract.image.binding) == (True, False, "session")
    assert (contract.video.verbatim_identity, contract.video.frames) == (True, False)
    assert "--trust-request-mm-kwargs" in (contract.video.detail or "")

    before = await running.resident()
    asked = [image(layouter, 0xFACE + number) for number in range(4)]
    claims = [await picture(running, number) for number in range(4)]
    works = [one.work(kind=MediaKind.IMAGE, claim=claim) for one, claim in zip(asked, claims, strict=True)]
    works[2]["session_id"] = "client"
    await ask(running, **{f"r{number}": work for number, work in enumerate(works)})
    expected = {address for one in asked for address in one.addresses}
    assert await running.resident() - before == expected
    again = await ask(running, **{f"again{number}": work for number, work in enumerate(works)})
    assert set(again.values()) == {asked[0].usable}


async def test_tokens_bind_where_the_engine_says_no_session_and_never_where_two_are_alike(
    fleet: StartFleet, layouter: Layouter
) -> None:
    running = await fleet(media_io_kwargs=CHANGED, version="0.29.0", max_num_batched_tokens=64)
    contract = (await running.registrations())[0].contract
    assert contract is not None
    assert (contract.image.proven, contract.image.binding) == (True, "tokens"), contract.image.detail
    before = await running.resident()
    first = image(layouter, 0xFACE)
    await ask(running, first=first.work(kind=MediaKind.IMAGE, claim=await picture(running, 1)))
    assert await running.resident() - before == set(first.addresses)

    alike = [image(layouter, 0xBEEF + number) for number in range(2)]
    works = [one.work(kind=MediaKind.IMAGE, claim=await picture(running, 2 + n)) for n, one in enumerate(alike)]
    await ask(running, one=works[0], other=works[1])
    held = await running.resident() - before
    assert held == set(first.addresses), "of the two nothing behind their common text is claimed"


async def test_frames_travel_in_the_videos_place_and_are_known_again(fleet: StartFleet, layouter: Layouter) -> None:
    running = await fleet(trust_request_mm_kwargs=True)
    contract = (await running.registrations())[0].contract
    assert contract is not None
    assert (contract.video.proven, contract.video.verbatim_identity) == (True, True), contract.video.detail
    assert (contract.video.frames, contract.video.binding) == (True, "session"), contract.video.detail

    before = await running.resident()
    shape = shape_of(CLIP, Sampling.usual(Loader.QWEN2_VL))
    assert shape.frame_indices is not None
    packed = pack_frames([png_frame(CLIP)] * len(shape.frame_indices))
    frames = SampledFrames(
        claim=await Blobs.of(running.settings).put(packed, FRAMES_TYPE),
        indices=list(shape.frame_indices), fps=4.0, total_frames=8, duration=2.0,
    )  # fmt: skip
    part = {"type": "video_url", "video_url": {"url": "https://nobody.invalid/clip.mp4"}}
    asked = Asked(layouter, part, shape, 0xFACE)
    await ask(running, r1=asked.work(kind=MediaKind.VIDEO, frames=frames))
    assert await running.resident() - before == set(asked.addresses)
    assert await ask(running, r2=asked.work(kind=MediaKind.VIDEO, frames=frames)) == {"r2": asked.usable}


async def test_an_engine_that_takes_no_frames_gets_the_video(fleet: StartFleet, layouter: Layouter) -> None:
    running = await fleet()
    before = await running.resident()
    blobs = Blobs.of(running.settings)
    frames = SampledFrames(
        claim=await blobs.put(b"never read", FRAMES_TYPE), indices=[0], fps=4.0, total_frames=8, duration=2.0
    )
    part = {"type": "video_url", "video_url": {"url": "https://nobody.invalid/clip.mp4"}}
    asked = Asked(layouter, part, shape_of(CLIP, Sampling.usual(Loader.QWEN2_VL)), 0xFACE)
    claim = await blobs.put(mp4(CLIP), "video/mp4")
    await ask(running, r1=asked.work(kind=MediaKind.VIDEO, claim=claim, frames=frames))
    assert await running.resident() - before == set(asked.addresses)
