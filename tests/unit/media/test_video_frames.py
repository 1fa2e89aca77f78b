"""Videos whose frames are handed over: exactly those that were hashed, within bounds, or the video itself."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from schemas.media import IdentitySource, MediaItem
from services.kv.frames import FRAMES_TYPE, unpack_frames
from services.kv.identity import client_identity, frames_identity, video_identity
from services.kv.sampling import Loader, Sampling
from services.media.frames import decode_with_frames
from services.media.video import VideoBounds, decode_video
from tests.unit.media.clips import clip
from tests.unit.media.conftest import MakeStage, Stage
from tests.unit.media.images import data_uri

MODELS = Path(__file__).parents[2] / "models"
MP4 = clip(12)
QWEN3 = Sampling.usual(Loader.QWEN3_VL)
BOUNDS = VideoBounds(10**8, 10**10, 30.0)


def video_part(data: bytes = MP4) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": data_uri(data, "video/mp4")}}


async def stage(make_stage: MakeStage, **more: Any) -> Stage:
    given: dict[str, Any] = {"models": {"m": str(MODELS / "qwen3-vl")}, "video_forward_frames": ("m",)}
    return await make_stage(**(given | more))


async def frames_of(stage: Stage, item: MediaItem) -> list[Any]:
    assert item.frames_claim is not None
    assert item.frames_claim.content_type == FRAMES_TYPE
    packed = await stage.app.blobs.get(item.frames_claim)
    return [np.asarray(Image.open(io.BytesIO(picture))) for picture in unpack_frames(packed)]


async def test_the_frames_that_were_hashed_are_kept_without_loss(make_stage: MakeStage) -> None:
    made = await stage(make_stage)
    [item] = await made.items(video_part())
    frames = await frames_of(made, item)
    assert len(frames) == item.frames == len(item.frame_indices or [])
    hashed = video_identity(
        4, 48, 64, b"".join(frame.tobytes() for frame in frames), source_fps=10.0, source_duration=1.2,
        sampled_timestamps=[index / 10.0 for index in item.frame_indices or []],
    )  # fmt: skip
    assert hashed == decode_video(MP4, QWEN3, BOUNDS).identity
    assert item.identity == frames_identity(hashed)
    assert (item.source, item.forward, item.reason) == (IdentitySource.CONTENT, True, None)


async def test_the_video_travels_too_for_engines_that_take_no_frames(make_stage: MakeStage) -> None:
    made = await stage(make_stage)
    await made.items(video_part())
    assert made.body["messages"][0]["content"][0] == video_part()


async def test_two_videos_of_a_request_travel_as_they_are(make_stage: MakeStage) -> None:
    made = await stage(make_stage)
    items = await made.items(video_part(), video_part(clip(12, seed=3)))
    assert [item.frames_claim for item in items] == [None, None]
    assert items[0].identity == decode_video(MP4, QWEN3, BOUNDS).identity


async def test_only_the_models_that_are_named_and_only_what_fits(make_stage: MakeStage) -> None:
    others: dict[str, Any] = {"video_forward_frames": ("other",)}
    for more in (others, {"video_frames_max_bytes": 1024}, {"media_memory_bytes": 1 << 20}):
        made = await stage(make_stage, **more)
        if "media_memory_bytes" in more:
            made.app.budget.take((1 << 20) - 4 * len(MP4))
        [item] = await made.items(video_part())
        assert item.frames_claim is None, more
        assert item.identity == decode_video(MP4, QWEN3, BOUNDS).identity


async def test_a_medium_that_its_client_names_travels_as_it_is(make_stage: MakeStage) -> None:
    made = await stage(make_stage, media_trust_uuid=True)
    [item] = await made.items(video_part() | {"uuid": "mine"})
    assert (item.source, item.identity, item.frames_claim) == (
        IdentitySource.CLIENT, client_identity("", "mine"), None,
    )  # fmt: skip


def test_frames_over_the_bound_are_none_whatever_is_decoded_after() -> None:
    video, packed = decode_with_frames(MP4, QWEN3, BOUNDS, 3000)
    assert packed is None
    assert video == decode_video(MP4, QWEN3, BOUNDS)
