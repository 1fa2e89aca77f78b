"""An image whose KV was evicted and whose encoder output was not: told by the agent, credited by a router, spared by
the engine.
"""

from __future__ import annotations

import orjson

from schemas.decision import Decision, Position
from schemas.expanded import Expanded, MediaSpan
from schemas.lifecycle import Usage
from schemas.media import MediaItem, MediaKind
from schemas.work import WorkMedia
from schemas.worker import Heartbeat
from services.kv.address import Span, addresses
from services.layout.layouter import Layouter
from services.layout.shapes import MediaShape
from services.layout.view import View
from services.router.deciding import Circumstances, decide
from services.router.dispatch import work_of
from services.router.policies import POLICIES
from services.router.situation import Parameters
from services.router.state import RouterState
from services.runtime.blobs import Blobs
from tests.integration.worker.conftest import Fleet, StartFleet, until
from tests.integration.worker.test_agent_beside_an_engine import LONG, body_of, png

IMAGE = 0xFACE
CONTENT = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": "https://h/a.png"}}]


def expanded(view: View, now_ms: int) -> Expanded:
    """The request as the layout stage passes it on."""
    (place,) = view.spans
    span = MediaSpan(
        item=0, offset=place.offset, length=place.length, identity=IMAGE, vision_tokens=view.vision_tokens
    )  # fmt: skip
    found = addresses(view.token_ids, 16, [Span(place.offset, place.length, IMAGE)])
    return Expanded(
        request_id="again", model="m", created_at_ms=now_ms, deadline_ms=now_ms + 60_000, addresses={16: found},
        prompt_tokens=len(view.token_ids), exact_tokens=len(view.token_ids), spans=[span],
        media=[MediaItem(kind=MediaKind.IMAGE, message=0, part=1, identity=IMAGE, forward=True)],
        vision_tokens=view.vision_tokens, body=orjson.dumps(body_of(CONTENT)).decode(),
    )  # fmt: skip


async def decided(running: Fleet, request: Expanded, *, resident: set[int]) -> Decision:
    """What a router decides that has read everything, between this worker and an equal one that saw no image."""
    state = RouterState(lease_seconds=60, heartbeat_seconds=2, started=0.0, batch=4, random=lambda: 0.5)
    worker = (await running.registrations())[-1]
    beat = (await running.heartbeats())[-1]
    assert not resident.intersection(request.addresses[16]), "no KV of the image is left"
    for name, encoder in (("w0", []), ("w1", beat.encoder), ("w2", [])):
        state.registered(name, worker.model_copy(update={"worker_id": name}), beat.at_ms)
        state.fleet.heartbeat(beat.model_copy(update={"worker_id": name, "encoder": encoder}), 0.0)
    given = Circumstances(
        policy=POLICIES["kv"], parameters=Parameters(), now_ms=beat.at_ms,
        expanded=Position(topic="kvroute.expanded.v1", partition=0, offset=0),
    )  # fmt: skip
    return decide(request, state.surroundings.views(request, 1.0, beat.at_ms), given)


async def latest(running: Fleet) -> Heartbeat:
    """A heartbeat that was sent from now on."""
    seen = len(await running.heartbeats())
    while len(found := await running.heartbeats()) == seen:
        pass
    return found[-1]


async def test_evicted_kv_and_a_kept_encoder_output(fleet: StartFleet, layouter: Layouter) -> None:
    running = await fleet(num_blocks=64)
    (core,) = running.engine.backend.cores
    assert (await latest(running)).encoder == [], "what the probes had encoded is nobody's"
    view = layouter.view(body_of(CONTENT), [MediaShape(MediaKind.IMAGE, 168, 224)])
    request = expanded(view, running.service.clock.now_ms())
    claim = await Blobs.of(running.settings).put(png(224, 168), "image/png")

    (place,) = view.spans
    medium = WorkMedia(
        kind=MediaKind.IMAGE, message=0, part=1, identity=IMAGE, claim=claim, tokens=place.length,
        end=place.offset + place.length,
    )  # fmt: skip
    before = core.encoded_tokens
    await running.give("first", body=request.body, media=[medium])
    await running.ended("first")
    assert core.encoded_tokens - before == place.length
    assert (await latest(running)).encoder == [IMAGE]

    for number in range(12):
        await running.give(f"r{number}", f"{number} {LONG}")
    await running.ended(*(f"r{number}" for number in range(12)))
    found = await decided(running, request, resident=await running.resident())
    assert (found.worker_id, found.ties, found.overlap_confirmed) == ("w1", 1, 0)
    assert [one.encoder_tokens for one in found.candidates] == [view.vision_tokens, 0, 0]
    assert found.margin == view.vision_tokens / 16

    (sent,) = work_of(request, found).media
    assert (sent.identity, sent.tokens, sent.end) == (IMAGE, medium.tokens, medium.end)
    steps, busy = core.encoded_tokens, core.busy_seconds
    await running.give("again", body=request.body, media=[medium])
    end = (await running.ended("again"))["again"]
    assert end.usage == Usage(prompt_tokens=len(view.token_ids), completion_tokens=1, cached_tokens=0)
    assert core.encoded_tokens == steps, "the KV was computed anew, the image was not encoded"
    spared = core.timing.step_seconds(prefill_tokens=len(view.token_ids), decode_sequences=0, vision_tokens=0)
    assert core.busy_seconds - busy < spared + place.length / core.timing.vision_tokens_per_second

    await running.engine.stop()
    await until(lambda: not running.agent.registered)
    await running.engine.start()
    await until(lambda: running.agent.registered)
    assert (await latest(running)).encoder == [], "another engine process has encoded nothing"
    found = await decided(running, request, resident=await running.resident())
    assert (found.ties, [one.encoder_tokens for one in found.candidates]) == (3, [0, 0, 0])
