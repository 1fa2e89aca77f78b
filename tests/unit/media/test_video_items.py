"""Videos through the media stage: by which rule, with which bytes, and why some are not exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.media import IdentitySource, MediaKind
from schemas.worker import Worker
from services.kv.identity import client_identity, url_identity
from services.kv.reason import Reason
from services.kv.sampling import Loader, Sampling
from services.media.video import VideoBounds, decode_video
from services.runtime.topics import WORKERS
from tests.unit.media.clips import clip, remuxed
from tests.unit.media.conftest import MakeStage, Stage
from tests.unit.media.images import data_uri
from tests.unit.media.site import Site

MODELS = Path(__file__).parents[2] / "models"
MP4 = clip(12)
LARGE = clip(40, height=128, width=128, options=(("qp", "1"),))
QWEN3 = Sampling.usual(Loader.QWEN3_VL)


def identity(data: bytes, sampling: Sampling = QWEN3) -> int:
    return decode_video(data, sampling, VideoBounds(10**8, 10**10, 30.0)).identity


def video_part(url: str | None, **beside: Any) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}} | beside


@pytest.fixture
async def web(site: Site) -> Site:
    site.files = {"/v.mp4": MP4, "/again.mkv": remuxed(MP4, "matroska"), "/large.mp4": LARGE, "/bad.mp4": MP4[:-500]}
    return site


@pytest.fixture
async def qwen(make_stage: MakeStage) -> Stage:
    return await make_stage(models={"m": str(MODELS / "qwen3-vl")})


async def test_a_video_is_its_sampled_frames(qwen: Stage, web: Site) -> None:
    first, again = await qwen.items(video_part(web.url("/v.mp4")), video_part(web.url("/again.mkv")))
    assert (first.source, first.forward, first.reason) == (IdentitySource.CONTENT, True, None)
    assert first.identity == again.identity == identity(MP4)
    assert (first.width, first.height, first.format, again.format) == (64, 48, "MP4", "MKV")
    assert (first.frames, first.frame_indices, first.total_frames) == (4, [0, 4, 7, 11], 12)
    assert (first.fps, first.duration) == (10.0, 1.2)


async def test_the_very_bytes_that_were_hashed_travel(qwen: Stage, web: Site) -> None:
    small, large = await qwen.items(video_part(web.url("/v.mp4")), video_part(web.url("/large.mp4")))
    content = qwen.body["messages"][0]["content"]
    assert content[0]["video_url"]["url"] == data_uri(MP4, "video/mp4")
    assert small.claim is None
    assert content[1]["video_url"]["url"] == "data:,"
    assert large.claim is not None
    assert large.claim.content_type == "video/mp4"
    assert await qwen.app.blobs.get(large.claim) == LARGE
    assert "http://" not in (qwen.resolved.body or "")


async def test_a_data_uri_gets_the_type_its_bytes_have(qwen: Stage) -> None:
    [item] = await qwen.items(video_part(data_uri(MP4, "video/jpeg-xl")))
    assert item.identity == identity(MP4)
    assert qwen.body["messages"][0]["content"][0]["video_url"]["url"] == data_uri(MP4, "video/mp4")


async def test_frames_that_a_client_sampled_stay_as_they_are(qwen: Stage) -> None:
    url = "data:video/jpeg;base64,/9j/AAAA,/9j/BBBB"
    [item] = await qwen.items(video_part(url))
    assert (item.reason, item.forward, item.identity) == (Reason.UNSUPPORTED_MEDIA, False, url_identity(url))
    assert qwen.body["messages"][0]["content"][0]["video_url"]["url"] == url


async def test_what_cannot_be_proven_says_why_and_still_travels(qwen: Stage, web: Site) -> None:
    web.files |= {"/one.mp4": clip(1), "/mpeg4.mp4": clip(12, codec="mpeg4"), "/page": b"<html>"}
    found = await qwen.items(*(video_part(web.url(path)) for path in ("/one.mp4", "/mpeg4.mp4", "/page", "/missing")))
    assert [item.reason for item in found] == [
        Reason.VIDEO_METADATA_AMBIGUOUS, Reason.CODEC_UNSUPPORTED, Reason.DECODE_FAILED, Reason.FETCH_FAILED,
    ]  # fmt: skip
    assert all(item.identity is None and not item.forward for item in found)
    urls = [part["video_url"]["url"] for part in qwen.body["messages"][0]["content"][:4]]
    assert [url[:5] for url in urls] == ["data:", "data:", "data:", "http:"]


async def test_too_large_is_found_before_decoding(make_stage: MakeStage, web: Site) -> None:
    stage = await make_stage(models={"m": str(MODELS / "qwen3-vl")}, video_max_pixels=48 * 64 * 12 - 1)
    [item] = await stage.items(video_part(web.url("/v.mp4")))
    assert item.reason is Reason.TOO_LARGE


class TestRules:
    async def test_are_the_familys(self, make_stage: MakeStage, web: Site) -> None:
        """Nemotron's loader spreads KVROUTE_VIDEO_NUM_FRAMES evenly, and a model may have its own number."""
        nemotron = {"m": str(MODELS / "nemotron-3-nano-omni")}
        for settings, frames in (
            ({}, 12),
            ({"video_num_frames": 5}, 5),
            ({"video_num_frames": 5, "video_num_frames_by_model": {"m": 3}}, 3),
            ({"video_fps_by_model": {"m": 2.0}}, 2),
        ):
            stage = await make_stage(models=nemotron, **settings)
            [item] = await stage.items(video_part(web.url("/v.mp4")))
            assert item.frames == frames

    async def test_are_read_from_a_folder_of_models_too(self, make_stage: MakeStage, web: Site) -> None:
        stage = await make_stage(models_dir=MODELS)
        for model, loader in (("qwen2.5-vl", Loader.QWEN2_VL), ("qwen3.5", Loader.QWEN3_VL)):
            [item] = await stage.items(body={"model": model, "messages": [
                {"role": "user", "content": [video_part(web.url("/v.mp4"))]}
            ]})  # fmt: skip
            assert item.identity == identity(MP4, Sampling.usual(loader))

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            ({}, Reason.UNSUPPORTED_MODEL),
            ({"models": {"m": str(MODELS / "llava-1.5")}}, Reason.UNSUPPORTED_MEDIA),
            ({"models": {"m": "/nowhere"}}, Reason.UNSUPPORTED_MODEL),
            ({"models": {"m": str(MODELS / "qwen3-vl")}, "media_decode_videos": False}, Reason.DECODE_DISABLED),
        ],
    )
    async def test_a_model_without_one_has_no_exact_videos(
        self, make_stage: MakeStage, web: Site, settings: dict[str, Any], reason: Reason
    ) -> None:
        url = web.url("/v.mp4")
        stage = await make_stage(**settings)
        [item] = await stage.items(video_part(url))
        assert (item.identity, item.source, item.reason) == (url_identity(url), IdentitySource.URL, reason)
        assert web.total == 0, "nothing is fetched for it"

    async def test_an_adapter_has_its_models(self, qwen: Stage, web: Site) -> None:
        worker = Worker(worker_id="w", epoch=1, model="m", loras=["tuned"], block_size=16, at_ms=1)
        body = {"model": "tuned", "messages": [{"role": "user", "content": [video_part(web.url("/v.mp4"))]}]}
        [before] = await qwen.items(body=body)
        await qwen.harness.push(WORKERS, worker.to_bytes(), key="w")
        [item] = await qwen.items(body=body)
        assert (before.reason, item.reason) == (Reason.UNSUPPORTED_MODEL, None)
        await qwen.harness.push(WORKERS, None, key="w")
        [after] = await qwen.items(body=body)
        assert after.reason is Reason.UNSUPPORTED_MODEL


async def test_a_trusted_uuid_names_the_video_and_its_frames_are_known(make_stage: MakeStage, web: Site) -> None:
    stage = await make_stage(models={"m": str(MODELS / "qwen3-vl")}, media_trust_uuid=True)
    [item] = await stage.items(video_part(web.url("/v.mp4"), uuid="u"))
    assert (item.identity, item.source) == (client_identity("", "u"), IdentitySource.CLIENT)
    assert (item.kind, item.frames, item.reason) == (MediaKind.VIDEO, 4, None)


async def test_a_uuid_that_is_not_trusted_costs_no_decoding(qwen: Stage, web: Site) -> None:
    [item] = await qwen.items(video_part(web.url("/v.mp4"), uuid="u"))
    assert item.reason is Reason.CLIENT_UUID
    assert web.total == 0


async def test_the_same_video_many_times_in_a_request_is_fetched_once(qwen: Stage, web: Site) -> None:
    web.delay = 0.05
    items = await qwen.items(*[video_part(web.url("/v.mp4"))] * 5)
    assert {item.identity for item in items} == {identity(MP4)}
    assert web.requests["/v.mp4"] == 1
