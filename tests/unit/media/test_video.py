"""Content identity of videos: the engine's numbers, its frames, and no identity where decoding finds anything else."""

from __future__ import annotations

import io
import json
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from services.kv.identity import video_identity
from services.kv.reason import Reason
from services.kv.sampling import Loader, Sampling
from services.media.unusable import Unusable
from services.media.video import DecodedVideo, VideoBounds, decode_video
from tests.unit.media.clips import clip, remuxed, spoiled

GOLDEN = Path(__file__).parents[2] / "golden/video_files"
FILES = json.loads((GOLDEN / "vllm_loader.json").read_text())["files"]
BOUNDS = VideoBounds(10_000_000, 1_000_000_000, 30.0)
QWEN3 = Sampling.usual(Loader.QWEN3_VL)
NOT_EXACT = {
    "corrupt_middle.webm": Reason.DECODE_FAILED,  # the loader takes the three frames before the damage for all
    "half.mp4": Reason.DECODE_FAILED,
    "one_frame.webm": Reason.VIDEO_METADATA_AMBIGUOUS,  # the loader reads none of it
    "zero_duration.webm": Reason.VIDEO_METADATA_AMBIGUOUS,
}


def decoded(data: bytes, sampling: Sampling = QWEN3, bounds: VideoBounds = BOUNDS) -> DecodedVideo:
    return decode_video(data, sampling, bounds)


def refused(data: bytes, sampling: Sampling = QWEN3, bounds: VideoBounds = BOUNDS) -> Reason:
    with pytest.raises(Unusable) as caught:
        decode_video(data, sampling, bounds)
    return caught.value.reason


@pytest.mark.parametrize("found", FILES, ids=lambda found: found["file"])
@pytest.mark.parametrize("loader", Loader)
def test_files_as_the_loaders_of_vllm_take_them(loader: Loader, found: dict[str, Any]) -> None:
    data, expected = (GOLDEN / found["file"]).read_bytes(), found[loader.value]
    reason = NOT_EXACT.get(found["file"])
    assert reason is not None or "error" not in expected, "where the loader fails there is no identity"
    if reason is not None:
        assert refused(data, Sampling.usual(loader)) is reason
        return
    video = decoded(data, Sampling.usual(loader))
    assert list(video.indices) == expected["frames_indices"]
    assert (video.frames, video.fps, video.duration) == (
        expected["total_num_frames"], expected["fps"], expected["duration"],
    )  # fmt: skip
    assert [len(video.indices), video.height, video.width] == expected["shape"][:3]


class TestWhatIsHashed:
    def test_the_sampled_frames_with_rate_duration_and_times(self) -> None:
        frames: dict[int, Any] = {}
        video = decode_video(clip(12), QWEN3, BOUNDS, lambda index, pixels: frames.update({index: pixels.copy()}))
        assert list(frames) == list(video.indices) == [0, 4, 7, 11]
        data = b"".join(frames[index].tobytes() for index in video.indices)
        assert video.identity == video_identity(
            4, 48, 64, data, source_fps=10.0, source_duration=1.2, sampled_timestamps=[0.0, 0.4, 0.7, 1.1]
        )

    def test_a_turned_video_is_hashed_upright(self) -> None:
        shown: list[Any] = []
        plain: list[Any] = []
        show = lambda into: lambda index, pixels: into.append(pixels)  # noqa: E731
        decode_video((GOLDEN / "rotate90.mp4").read_bytes(), QWEN3, BOUNDS, show(shown))
        decode_video((GOLDEN / "h264.mp4").read_bytes(), QWEN3, BOUNDS, show(plain))
        assert np.array_equal(shown[0], np.rot90(plain[0], -1)), "a quarter clockwise"

    def test_the_same_packets_in_another_container_are_the_same_video(self) -> None:
        assert decoded(remuxed(clip(12), "matroska")).identity == decoded(clip(12)).identity
        vp9, mp4 = ((GOLDEN / name).read_bytes() for name in ("vp9.webm", "vp9.mp4"))
        assert decoded(vp9).identity == decoded(mp4).identity

    def test_another_rate_is_another_video(self) -> None:
        assert decoded(clip(12, rate=Fraction(12))).identity != decoded(clip(12)).identity

    def test_another_sampling_is_another_video(self) -> None:
        denser = Sampling.usual(Loader.QWEN3_VL, fps=5)
        assert decoded(clip(12), denser).identity != decoded(clip(12)).identity

    def test_another_length_is_another_video_even_where_the_frames_are_alike(self) -> None:
        opencv = Sampling.usual(Loader.OPENCV, num_frames=2)
        ends = [decoded(clip(frames, seed=3), opencv) for frames in (12, 13)]
        assert ends[0].identity != ends[1].identity

    def test_other_pixels_are_another_video(self) -> None:
        assert decoded(clip(12, seed=1)).identity != decoded(clip(12)).identity

    @pytest.mark.parametrize("rate", [Fraction(30000, 1001), Fraction(24000, 1001), Fraction(25, 3)])
    @pytest.mark.parametrize("container", ["mp4", "matroska"])
    def test_fractional_rates_stay_fractions_until_they_are_formatted(self, container: str, rate: Fraction) -> None:
        video = decoded(clip(12, rate=rate, container=container))
        assert video.fps == float(rate)
        assert video.duration == 12 / float(rate)


CODECS = [
    ("h264", "mp4"), ("h264", "mov"), ("h264", "matroska"), ("hevc", "mp4"), ("hevc", "mov"), ("hevc", "matroska"),
    ("vp8", "webm"), ("vp8", "matroska"),
    ("vp9", "webm"), ("vp9", "mp4"), ("vp9", "matroska"), ("av1", "mp4"), ("av1", "webm"), ("av1", "matroska"),
]  # fmt: skip
TYPES = {"mp4": "video/mp4", "mov": "video/quicktime", "matroska": "video/x-matroska", "webm": "video/webm"}


@pytest.mark.parametrize(("codec", "container"), CODECS)
def test_codecs_and_containers(codec: str, container: str) -> None:
    video = decoded(clip(12, codec=codec, container=container))
    assert (video.frames, video.fps, video.height, video.width) == (12, 10.0, 48, 64)
    assert video.container.content_type == TYPES[container]


class TestVp8:
    """The oldest of the codecs: WebM and MKV, its identity made as everybody's."""

    def test_what_is_hashed_are_the_sampled_frames(self) -> None:
        frames: dict[int, Any] = {}
        data = clip(24, codec="vp8", container="webm")
        video = decode_video(data, QWEN3, BOUNDS, lambda index, pixels: frames.update({index: pixels.copy()}))
        assert list(frames) == list(video.indices) == [0, 8, 15, 23]
        assert video.identity == video_identity(
            4, 48, 64, b"".join(frames[index].tobytes() for index in video.indices), source_fps=10.0,
            source_duration=2.4, sampled_timestamps=[0.0, 0.8, 1.5, 2.3],
        )  # fmt: skip

    @pytest.mark.parametrize("loader", Loader)
    def test_every_loaders_frames_are_another_clips_of_the_same_numbers(self, loader: Loader) -> None:
        sampling = Sampling.usual(loader)
        vp8, h264 = decoded(clip(24, codec="vp8", container="webm"), sampling), decoded(clip(24), sampling)
        assert (vp8.indices, vp8.frames, vp8.fps) == (h264.indices, h264.frames, h264.fps)
        assert vp8.identity != h264.identity, "other codecs, other pixels"

    def test_webm_and_mkv_of_the_same_packets_are_one_video(self) -> None:
        webm = clip(12, codec="vp8", container="webm")
        assert decoded(remuxed(webm, "matroska")).identity == decoded(webm).identity

    def test_another_rate_and_other_pixels_are_other_videos(self) -> None:
        seen = [
            decoded(clip(12, codec="vp8", container="webm", **other)).identity
            for other in ({}, {"rate": Fraction(12)}, {"seed": 1}, {"height": 64, "width": 48})
        ]
        assert len(set(seen)) == 4


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_ten_bits_a_sample(codec: str) -> None:
    assert decoded(clip(12, codec=codec, container="matroska", pix_fmt="yuv420p10le")).frames == 12


@pytest.mark.parametrize("frames", [2, 3, 5, 7, 13])
@pytest.mark.parametrize("loader", Loader)
def test_few_and_odd_numbers_of_frames(loader: Loader, frames: int) -> None:
    video = decoded(clip(frames), Sampling.usual(loader))
    assert video.frames == frames
    assert 0 < len(video.indices) <= frames


class TestNoIdentity:
    def test_for_one_frame(self) -> None:
        assert refused(clip(1)) is Reason.VIDEO_METADATA_AMBIGUOUS

    @pytest.mark.parametrize("part", [0.3, 0.6, 0.9, 0.99])
    @pytest.mark.parametrize(
        ("codec", "container"), [("h264", "mp4"), ("h264", "matroska"), ("vp8", "webm"), ("vp9", "webm")]
    )
    def test_for_a_truncated_file(self, codec: str, container: str, part: float) -> None:
        data = clip(40, codec=codec, container=container)
        assert refused(data[: int(len(data) * part)]) in (Reason.DECODE_FAILED, Reason.VIDEO_METADATA_AMBIGUOUS)

    @pytest.mark.parametrize(("codec", "container"), [("h264", "mp4"), ("vp9", "webm"), ("av1", "mp4")])
    def test_for_a_damaged_middle(self, codec: str, container: str) -> None:
        data = clip(40, codec=codec, container=container)
        middle = len(data) // 2
        assert refused(spoiled(data, [(middle, middle + 200)])) in (
            Reason.DECODE_FAILED, Reason.VIDEO_METADATA_AMBIGUOUS,
        )  # fmt: skip

    def test_for_a_damaged_vp8_middle_or_it_is_another_video(self) -> None:
        """VP8 has no checksum: what decodes without an error has other pixels."""
        data = clip(40, codec="vp8", container="webm")
        whole = decoded(data).identity
        for at in range(len(data) // 4, len(data) - 300, len(data) // 16):
            try:
                found = decoded(spoiled(data, [(at, at + 200)])).identity
            except Unusable:
                continue
            assert found != whole

    @pytest.mark.parametrize("codec", ["h264", "hevc"])
    def test_that_is_the_whole_files_for_damage_no_decoder_can_see(self, codec: str) -> None:
        """Some damage decodes to other pictures without any error; then it is another video."""
        data = clip(40, codec=codec)
        whole, start = decoded(data).identity, data.index(b"mdat")
        end = start + int.from_bytes(data[start - 4 : start], "big") - 40
        seen = []
        for at in range(start + 1200, min(end, start + 3000), 60):
            try:
                seen.append(decoded(spoiled(data, [(at, at + 30)])).identity)
            except Unusable:
                continue
        assert whole not in seen

    def test_for_a_count_that_is_a_lie(self) -> None:
        data = clip(12)
        at = data.index(b"stsz") + 12
        assert struct.unpack(">I", data[at : at + 4]) == (12,)
        assert refused(data[:at] + struct.pack(">I", 11) + data[at + 4 :]) in (
            Reason.VIDEO_METADATA_AMBIGUOUS, Reason.DECODE_FAILED,
        )  # fmt: skip

    def test_for_other_codecs(self) -> None:
        assert refused(clip(12, codec="mpeg4")) is Reason.CODEC_UNSUPPORTED

    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (b"", Reason.DECODE_FAILED),
            (b"<html>", Reason.DECODE_FAILED),
            (b"RIFF\x00\x00\x00\x00AVI LIST", Reason.CODEC_UNSUPPORTED),
            (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", Reason.CODEC_UNSUPPORTED),
            (b"ffconcat version 1.0\nfile '/etc/passwd'\n", Reason.DECODE_FAILED),
            (b"\x00\x00\x00\x1cftypavif\x00\x00\x00\x00", Reason.CODEC_UNSUPPORTED),
            (b"\x00\x00\x00\x08moov", Reason.DECODE_FAILED),
        ],
    )
    def test_for_what_is_no_video(self, data: bytes, reason: Reason) -> None:
        assert refused(data) is reason

    def test_for_sound_alone(self) -> None:
        file = io.BytesIO()
        with av.open(file, "w", format="mp4") as out:
            stream = out.add_stream("aac", rate=8000)
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate = 8000
            out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
        assert refused(file.getvalue()) is Reason.DECODE_FAILED


class TestBounds:
    """Looked at before memory is taken."""

    def test_pixels_of_a_frame(self) -> None:
        assert refused(clip(12), bounds=VideoBounds(48 * 64 - 1, 10**9, 30.0)) in (
            Reason.TOO_LARGE, Reason.DECODE_FAILED,
        )  # fmt: skip

    def test_pixels_of_all_frames(self) -> None:
        assert refused(clip(12), bounds=VideoBounds(10**7, 48 * 64 * 12 - 1, 30.0)) is Reason.TOO_LARGE
        assert decoded(clip(12), bounds=VideoBounds(10**7, 48 * 64 * 12, 30.0)).frames == 12

    def test_seconds(self) -> None:
        assert refused(clip(12), bounds=VideoBounds(10**7, 10**9, 0.0)) is Reason.DECODE_FAILED


class TestRates:
    def test_one_that_varies_counts_as_its_average(self) -> None:
        """What the container claims, duration times average, is more than there is: the loader counts the frames."""
        video = decoded((GOLDEN / "vfr.webm").read_bytes())
        assert (video.frames, video.fps, video.duration) == (10, 25.0, 0.4)
