"""Media parts of a body, as vLLM reads them."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.media import MediaKind
from services.engine_sim.content import MediaPart, media_parts
from services.engine_sim.errors import ApiError


def parts(*content: Any) -> list[MediaPart]:
    return media_parts([{"role": "user", "content": list(content)}])


def test_parts_come_in_prompt_order_over_all_messages() -> None:
    found = media_parts(
        [
            {"role": "system", "content": "text only"},
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "u1"}}, {"type": "text", "text": "t"}],
            },
            {"role": "user", "content": ["bare", {"type": "video_url", "video_url": {"url": "u2"}, "uuid": "v"}]},
        ]
    )
    assert found == [MediaPart(MediaKind.IMAGE, "u1", None), MediaPart(MediaKind.VIDEO, "u2", "v")]


def test_the_uuid_counts_beside_the_url_object_only() -> None:
    (inside,) = parts({"type": "image_url", "image_url": {"url": "u", "uuid": "inside"}})
    (empty,) = parts({"type": "image_url", "image_url": {"url": "u"}, "uuid": ""})
    assert (inside.uuid, empty.uuid) == (None, "")


@pytest.mark.parametrize("url", [{}, {"image_url": None}, {"image_url": {"url": None}}, {"image_url": {"url": ""}}])
def test_a_uuid_may_stand_alone(url: dict[str, Any]) -> None:
    assert parts({"type": "image_url", **url, "uuid": "known"}) == [MediaPart(MediaKind.IMAGE, None, "known")]


def test_a_part_without_type_is_known_by_its_field() -> None:
    assert parts({"image_url": "u"}) == [MediaPart(MediaKind.IMAGE, "u", None)]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url", "image_url": {}}, "neither a URL nor a uuid"),
        ({"type": "image_url", "image_url": {"url": 3}}, "holds a int, expected a URL"),
        ({"type": "input_audio", "input_audio": {}}, r"At most 0 audio\(s\)"),
        ({"type": "audio_url", "audio_url": {}}, r"At most 0 audio\(s\)"),
        (3, "holds a int, expected objects"),
    ],
)
def test_what_no_engine_takes_is_refused(part: Any, message: str) -> None:
    with pytest.raises(ApiError, match=message):
        parts(part)


def test_a_message_that_is_no_object_is_refused() -> None:
    with pytest.raises(ApiError, match="messages holds a str"):
        media_parts(["hello"])
