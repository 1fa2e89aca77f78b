"""The chats that tell apart what engines make of videos. A set that is small on purpose; tests prove that it suffices.

What each one is for (docs/design.md, section 7): markers and stamps; a single frame; a side smaller than one token;
a budget for each frame, and rates of pruning; sampling; a budget for the whole clip, which rounds an odd number of
frames to even or up; several videos.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from schemas.media import MediaKind
from services.kv.frames import frames_kwargs, frames_uri
from services.kv.sampling import Sampling, Source, sample
from services.layout.shapes import MediaShape
from services.worker.clips import Clip, png_frame
from services.worker.probe_requests import Body, Probe

PLAIN = Clip(8, 64, 64)
SINGLE = Clip(1, 64, 64)
NARROW = Clip(8, 24, 64)
LONG = Clip(40, 64, 96)
WIDE = Clip(4, 1024, 1024, fps=2)
VAST = Clip(13, 1376, 1408, fps=2)
"""Its 13 frames are over the usual budget of a clip when they count as 14, and under it when they count as 12."""

ALONE: tuple[Clip, ...] = (PLAIN, SINGLE, NARROW, LONG, WIDE, VAST)
"""Probes of one video each, the small ones first: what a small one covers tells a refusal of a large one's size."""

SHORT = Clip(4, 96, 64, fps=2)
"""All of its frames are taken: a processor that is not told otherwise would sample again."""
ODD = Clip(13, 64, 96, fps=2)

AS_FRAMES: tuple[Clip, ...] = (PLAIN, SHORT, ODD, LONG)
"""Probes of videos that are handed over as their frames."""

Encode = Callable[[Clip], str]


def video_probes(model: str, sampling: Sampling, encode: Encode, *, several: bool = True) -> list[Probe]:
    """The probes of a model whose videos are sampled like this. ``encode`` makes a clip's URI; it takes a moment."""
    probes = [video_probe(model, f"video of {clip.name}", [clip], sampling, encode) for clip in ALONE]
    if several:
        probes.append(video_probe(model, "two videos", [PLAIN, LONG], sampling, encode))
    return probes


def video_probe(
    model: str, name: str, clips: Sequence[Clip], sampling: Sampling, encode: Encode, uuid: str | None = None,
    filler: str = "What happens?",
) -> Probe:  # fmt: skip
    """One turn with these videos, text between and after."""
    content: list[Body] = []
    for number, clip in enumerate(clips):
        content.append({"type": "text", "text": f"Clip {number}: "})
        part: dict[str, Any] = {"type": "video_url", "video_url": {"url": encode(clip)}}
        content.append(part if uuid is None else {**part, "uuid": uuid})
    content.append({"type": "text", "text": filler})
    body: Body = {"model": model, "messages": [{"role": "user", "content": content}]}
    return Probe(name, body, tuple(shape_of(clip, sampling) for clip in clips))


def shape_of(clip: Clip, sampling: Sampling) -> MediaShape:
    """What the model sees of a clip; without frames where the loader refuses it."""
    try:
        taken = sample(Source(clip.frames, float(clip.fps)), sampling)
    except (ValueError, ZeroDivisionError):
        return MediaShape(MediaKind.VIDEO, clip.height, clip.width)
    return MediaShape(
        MediaKind.VIDEO, clip.height, clip.width, frames=len(taken.indices), frame_indices=taken.indices, fps=taken.fps
    )


def video_identity_probe(model: str, uuid: str, sampling: Sampling, encode: Encode, block_size: int) -> Probe:
    """A request that fills some blocks around one video, whose uuid must come back in the KV events."""
    filler = "one two three four five six seven eight nine ten " * (block_size // 8 + 1)
    probe = video_probe(model, "video identity", [PLAIN], sampling, encode, uuid, filler)
    return Probe(probe.name, {**probe.body, "max_tokens": 1, "temperature": 0}, probe.shapes)


def frames_probes(model: str, sampling: Sampling) -> list[Probe]:
    """Videos handed over as their frames: each must be laid out as the video itself is."""
    return [_frames_probe(model, f"frames of {clip.name}", clip, sampling) for clip in AS_FRAMES]


def frames_identity_probe(model: str, uuid: str, sampling: Sampling, block_size: int) -> Probe:
    """A request that fills some blocks around the frames of a video, whose uuid must be known again.

    Its tokens are not those of the video's own: by tokens alone two prompts alike are not told apart.
    """
    filler = "ten nine eight seven six five four three two one " * (block_size // 8 + 1)
    probe = _frames_probe(model, "frames identity", PLAIN, sampling, uuid, filler)
    return Probe(probe.name, {**probe.body, "max_tokens": 1, "temperature": 0}, probe.shapes)


def _frames_probe(
    model: str, name: str, clip: Clip, sampling: Sampling, uuid: str | None = None, filler: str = "What happens?"
) -> Probe:
    uri, said = as_frames(clip, sampling)
    probe = video_probe(model, name, [clip], sampling, lambda _: uri, uuid, filler)
    return Probe(name, {**probe.body, "media_io_kwargs": {"video": said}}, probe.shapes)


def as_frames(clip: Clip, sampling: Sampling) -> tuple[str, dict[str, Any]]:
    """The clip's sampled frames as an engine takes them: their URI, and what is said of them."""
    taken = sample(Source(clip.frames, float(clip.fps)), sampling)
    duration = clip.frames / float(clip.fps)
    said = frames_kwargs(taken.indices, fps=taken.fps, total_frames=clip.frames, duration=duration)
    return frames_uri([png_frame(clip)] * len(taken.indices)), said
