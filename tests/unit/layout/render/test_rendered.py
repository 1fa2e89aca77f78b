"""An engine's rendering becomes a view only where it does not contradict itself or the request."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.media import MediaItem, MediaKind
from services.kv.identity import engine_uuid
from services.kv.reason import Reason
from services.layout.render.body import render_body
from services.layout.render.client import RENDER_PATH
from services.layout.render.rendered import NotRendered, Rendered, rendered_view
from services.layout.render.stage import RenderedChat
from services.layout.shapes import MediaShape
from services.layout.view import ViewSpan
from tests.unit.layout.golden import recording

IMAGE, VIDEO = MediaShape(MediaKind.IMAGE), MediaShape(MediaKind.VIDEO)
DOUBTED = MediaShape(MediaKind.IMAGE, reason=Reason.FETCH_FAILED, detail="gone")


def answer(images: Any = None, videos: Any = None, tokens: Any = None) -> dict[str, Any]:
    places = {"image": images, "video": videos}
    return {
        "token_ids": list(range(20)) if tokens is None else tokens,
        "features": {"mm_placeholders": {kind: found for kind, found in places.items() if found is not None}},
    }


def place(offset: Any, length: Any = 2) -> dict[str, Any]:
    return {"offset": offset, "length": length}


def rendered(*images: int, videos: tuple[int, ...] = ()) -> Rendered:
    return Rendered.read(answer([place(at) for at in images], [place(at) for at in videos] or None))


def test_text_is_exact_to_its_end() -> None:
    for features in (None, {}, {"mm_placeholders": {}}):
        view = rendered_view(Rendered.read({"token_ids": [1, 2, 3], "features": features}), [], "render/x")
        assert (view.token_ids, view.exact_tokens, view.reason, view.variant) == ([1, 2, 3], 3, None, "render/x")


def test_media_of_each_kind_stand_in_their_order() -> None:
    view = rendered_view(rendered(1, 9, videos=(5,)), [IMAGE, VIDEO, IMAGE], "r")
    assert view.spans == [ViewSpan(0, 1, 2, 2), ViewSpan(1, 5, 2, 2), ViewSpan(2, 9, 2, 2)]
    assert (view.exact_tokens, view.vision_tokens, view.prompt_tokens) == (20, 6, 20)


def test_exactness_ends_at_the_first_medium_in_doubt() -> None:
    view = rendered_view(rendered(1, 5, 9), [IMAGE, DOUBTED, IMAGE], "r")
    assert (view.exact_tokens, view.reason, view.detail) == (5, Reason.FETCH_FAILED, "gone")
    assert [span.item for span in view.spans] == [0]


@pytest.mark.parametrize(
    ("said", "media"), [(rendered(1), [IMAGE, IMAGE]), (rendered(1, 5), [IMAGE]), (rendered(1), [VIDEO])]
)
def test_other_media_than_the_requests_are_nobodys(said: Rendered, media: list[MediaShape]) -> None:
    view = rendered_view(said, media, "r")
    assert (view.reason, view.exact_tokens, view.spans) == (Reason.PLACEHOLDER_MISMATCH, 0, [])


@pytest.mark.parametrize(
    "said",
    [
        None, [], {}, {"token_ids": None}, {"token_ids": []}, {"token_ids": ["1"]}, {"token_ids": [True]},
        {"token_ids": [-1]}, {"token_ids": [1 << 32]}, answer([place(19)]), answer([place(1), place(2)]),
        answer([place(5), place(1)]), answer([place(1)], [place(2)]), answer([place(-1)]), answer([place(1, 0)]),
        answer([place("1")]), answer([None]), answer([place(True)]),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_not_taken(said: Any) -> None:
    with pytest.raises(NotRendered) as caught:
        Rendered.read(said)
    assert caught.value.reason is Reason.PLACEHOLDER_MISMATCH


def test_kinds_of_media_that_are_not_known() -> None:
    said = {"token_ids": [1, 2], "features": {"mm_placeholders": {"vision_chunk": [place(0)]}}}
    with pytest.raises(NotRendered) as caught:
        Rendered.read(said)
    assert caught.value.reason is Reason.UNSUPPORTED_MEDIA


def test_a_recorded_rendering_of_a_real_engine() -> None:
    cases = recording("q25vl_bs16")["cases"]
    found = [case["response"] for case in cases if case.get("endpoint", case.get("path")) == RENDER_PATH]
    assert len(found) == 3
    for said in found:
        ((kind, places),) = said["features"]["mm_placeholders"].items()
        view = rendered_view(Rendered.read(said), [MediaShape(MediaKind(kind))] * len(places), "r")
        assert [(span.offset, span.length) for span in view.spans] == [(p["offset"], p["length"]) for p in places]
        assert view.exact_tokens == len(said["token_ids"])


class TestBody:
    """What is sent to be rendered."""

    BODY = {
        "model": "alias", "stream": True, "stream_options": {}, "max_tokens": 5,
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [
                {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "v"}},
            ]},
        ],
    }  # fmt: skip

    def item(self, part: int, **more: Any) -> MediaItem:
        return MediaItem(kind=MediaKind.IMAGE, message=1, part=part, **more)

    def test_media_travel_by_the_names_that_they_will_run_under(self) -> None:
        media = [self.item(1, identity=7, forward=True), self.item(2, identity=8)]
        sent = render_body(self.BODY, media, {1: "data:x"}, model="m", lora=None)
        parts = sent["messages"][1]["content"]
        assert parts[1] == {"type": "image_url", "image_url": {"url": "u", "detail": "low"}, "uuid": engine_uuid(7)}
        assert parts[2] == {"type": "image_url", "image_url": {"url": "data:x"}}
        assert (sent["model"], sent["mm_payload"], sent["max_tokens"]) == ("m", "none", 5)
        assert "stream" not in sent

    def test_the_requests_own_body_stays_as_it_is(self) -> None:
        before = str(self.BODY)
        sent = render_body(self.BODY, [self.item(1, identity=7, forward=True)], {0: "data:x"}, model="m", lora="l")
        assert (str(self.BODY), sent["model"]) == (before, "l")

    @pytest.mark.parametrize(
        ("body", "item"), [({"messages": "x"}, None), ({**BODY, "prompt_embeds": "x"}, None), (BODY, (5, 0)),
                           (BODY, (0, 0)), (BODY, (1, 9))],
    )  # fmt: skip
    def test_what_an_engine_is_not_asked(self, body: dict[str, Any], item: tuple[int, int] | None) -> None:
        media = [] if item is None else [MediaItem(kind=MediaKind.IMAGE, message=item[0], part=item[1])]
        with pytest.raises(NotRendered):
            render_body(body, media, {}, model="m", lora=None)


def test_the_requests_own_arguments_end_exactness() -> None:
    view = RenderedChat(rendered(5)).view({"mm_processor_kwargs": {"max_pixels": 5}}, [IMAGE])
    assert (view.reason, view.exact_tokens) == (Reason.MM_PROCESSOR_KWARGS, 5)


def test_what_was_not_rendered_has_an_estimated_length() -> None:
    chat = RenderedChat(NotRendered(Reason.BUDGET_EXCEEDED, "slow"))
    view = chat.view({"messages": [{"role": "user", "content": "x" * 400}]}, [IMAGE])
    assert (view.reason, view.exact_tokens, view.prompt_tokens) == (Reason.BUDGET_EXCEEDED, 0, 100 + 1024)
