"""A video as its frames, in the request the engine gets; and whose prompt an attempt is known as."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from schemas.media import MediaKind
from schemas.request import Claim
from schemas.work import SampledFrames, Work, WorkMedia
from services.kv.address import Span
from services.runtime.errors import BadRecord
from services.worker.attempt import _uri, sent_prompt
from services.worker.engine_body import build, frames_to_send

CLAIM = Claim(uri="blob:" + "0" * 32, size=1)
FRAMES = SampledFrames(claim=CLAIM, indices=[0, 5], fps=10.0, total_frames=6, duration=0.6)
VIDEO = WorkMedia(kind=MediaKind.VIDEO, message=0, part=0, identity=7, frames=FRAMES, tokens=8, end=12)
IMAGE = WorkMedia(kind=MediaKind.IMAGE, message=0, part=1, identity=9, tokens=4, end=17)


def work(*media: WorkMedia, **body: Any) -> Work:
    parts: list[dict[str, Any]] = [
        {"type": f"{medium.kind}_url", f"{medium.kind}_url": {"url": "https://h/x"}} for medium in media
    ]
    text = orjson.dumps({"messages": [{"role": "user", "content": parts}], **body}).decode()
    return Work(
        request_id="r", attempt=1, worker_id="w1", epoch=1, model="m", deadline_ms=0, created_at_ms=0, decided_at_ms=0,
        body=text, media=list(media), addresses=[1, 2],
    )  # fmt: skip


def test_the_engine_is_told_which_frames_they_are() -> None:
    given = work(VIDEO, IMAGE, media_io_kwargs={"image": {"x": 1}})
    made = build(given, given.body or "", {0: "data:video/jpeg;base64,AA,BB"}, ranks=1, frames=FRAMES)
    body = orjson.loads(made.body)
    assert body["media_io_kwargs"] == {
        "image": {"x": 1},
        "video": {"num_frames": 2, "fps": 10.0, "frames_indices": [0, 5], "total_num_frames": 6, "duration": 0.6,
                  "do_sample_frames": False},
    }  # fmt: skip
    assert body["messages"][0]["content"][0]["video_url"] == {"url": "data:video/jpeg;base64,AA,BB"}


@pytest.mark.parametrize(
    ("media", "found"),
    [
        ([VIDEO, IMAGE], {0: FRAMES}),
        ([VIDEO, VIDEO], {}),
        ([VIDEO.model_copy(update={"frames": None})], {}),
        ([VIDEO.model_copy(update={"identity": None})], {}),
    ],
)
def test_only_the_one_video_of_a_request_whose_identity_travels(
    media: list[WorkMedia], found: dict[int, SampledFrames]
) -> None:
    assert frames_to_send(work(*media)) == found


def test_damaged_frames_are_an_error_of_the_record() -> None:
    claim = CLAIM.model_copy(update={"content_type": "application/x-kvroute-frames"})
    with pytest.raises(BadRecord, match="blob:0"):
        _uri(claim, b"\1")


def test_an_attempt_is_known_by_the_places_and_names_of_its_media() -> None:
    prompt = sent_prompt(work(VIDEO, IMAGE), "s", "s")
    assert prompt.spans == (Span(4, 8, 7), Span(13, 4, 9))
    assert (list(prompt.addresses), prompt.whole, prompt.session, prompt.own) == ([1, 2], True, "s", True)
    assert not sent_prompt(work(VIDEO, IMAGE), "client", "s").own
    assert not sent_prompt(work(VIDEO, IMAGE), None, None).own


@pytest.mark.parametrize("unknown", ["identity", "tokens", "end"])
def test_one_medium_that_is_not_told_makes_it_anything(unknown: str) -> None:
    assert not sent_prompt(work(VIDEO, IMAGE.model_copy(update={unknown: None})), "s", "s").whole
    assert not sent_prompt(work(VIDEO).model_copy(update={"addresses": []}), "s", "s").whole
