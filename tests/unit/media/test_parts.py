"""Which parts are media, and what becomes of clients' uuids: read as vLLM reads them."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.media import MediaKind
from services.kv.identity import engine_uuid
from services.kv.reason import Reason
from services.media.parts import Found, find_media, set_url
from services.runtime.errors import Refused
from tests.unit.media.conftest import chat, image_part

URL = "https://example.com/a.png"


def find(*parts: dict[str, object], trust: bool = False) -> list[Found]:
    return find_media(chat(*parts), trust_uuid=trust, max_items=64)


class TestKinds:
    def test_in_prompt_order_over_all_messages(self) -> None:
        body = {
            "model": "m",
            "messages": [
                {"role": "system", "content": [image_part(URL)]},
                {"role": "user", "content": "text"},
                {"role": "assistant", "content": None, "tool_calls": []},
                {"role": "tool", "content": ["plain text", image_part(URL), {"video_url": {"url": URL}}]},
            ],
        }  # fmt: skip
        found = find_media(body, trust_uuid=False, max_items=64)
        assert [(each.message, each.part, each.kind) for each in found] == [
            (0, 0, MediaKind.IMAGE), (3, 1, MediaKind.IMAGE), (3, 2, MediaKind.VIDEO),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("part", "kind", "reason"),
        [
            ({"type": "image_url", "image_url": {"url": URL}}, MediaKind.IMAGE, None),
            ({"type": "image_url", "image_url": URL}, MediaKind.IMAGE, None),
            ({"image_url": URL}, MediaKind.IMAGE, None),
            ({"image_url": {"url": URL, "detail": "low"}}, MediaKind.IMAGE, None),
            ({"type": "video_url", "video_url": {"url": URL}}, MediaKind.VIDEO, None),
            ({"type": "audio_url", "audio_url": {"url": URL}}, MediaKind.AUDIO, Reason.AUDIO),
            ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, MediaKind.AUDIO, Reason.AUDIO),
            ({"type": "input_image", "image_url": URL}, MediaKind.OTHER, Reason.UNSUPPORTED_MEDIA),
            ({"type": "image", "image": "AAAA"}, MediaKind.OTHER, Reason.UNSUPPORTED_MEDIA),
            ({"type": "image_embeds", "image_embeds": "AAAA"}, MediaKind.OTHER, Reason.UNSUPPORTED_MEDIA),
            ({"image_embeds": "AAAA"}, MediaKind.OTHER, Reason.UNSUPPORTED_MEDIA),
            ({"type": "file", "file": {"file_id": "x"}}, MediaKind.OTHER, Reason.UNSUPPORTED_MEDIA),
        ],
    )
    def test_kind_and_reason(self, part: dict[str, object], kind: MediaKind, reason: Reason | None) -> None:
        [found] = find(part)
        assert (found.kind, found.reason) == (kind, reason)

    @pytest.mark.parametrize("kind", ["text", "input_text", "output_text", "refusal", "thinking", "tool_reference"])
    def test_text_is_no_medium(self, kind: str) -> None:
        assert find({"type": kind, "text": "https://example.com/a.png"}) == []

    def test_an_untyped_part_gets_the_type_engines_take_it_for(self) -> None:
        body = chat({"image_url": URL}, {"text": "x"})
        find_media(body, trust_uuid=False, max_items=64)
        assert [part["type"] for part in body["messages"][0]["content"][:2]] == ["image_url", "text"]

    @pytest.mark.parametrize(
        "part",
        [
            {"type": "image_url", "image_url": {"url": URL}, "video_url": {"url": URL}},
            {"image_url": URL, "audio_url": URL},
            {"type": "video_url", "image_url": URL},
            {"type": "image_url", "image_embeds": "AAAA"},
            {"type": "image_url"},
            {"type": "image_url", "image_url": None},
            {"type": "image_url", "image_url": {}},
            {"type": "image_url", "image_url": {"url": ""}},
            {"type": "image_url", "image_url": {"url": 5}},
            {"type": "image_url", "image_url": [URL]},
            {"type": "image_url", "image_url": {"url": "https://x.example/" + "a" * 9000}},
            {"type": "x" * 100},
            {"type": ""},
        ],
    )
    def test_parts_that_say_two_things_or_nothing_are_refused(self, part: dict[str, object]) -> None:
        with pytest.raises(Refused) as caught:
            find(part)
        assert caught.value.status == 400


class TestUuid:
    def test_is_removed_from_wherever_it_stands(self) -> None:
        body = chat(
            image_part(URL, uuid="a"),
            {"type": "image_url", "image_url": {"url": URL, "uuid": "b"}},
            {"type": "text", "text": "x", "uuid": "c"},
            {"type": "input_audio", "input_audio": {"data": "x"}, "uuid": "d"},
        )
        found = find_media(body, trust_uuid=False, max_items=64)
        assert "uuid" not in str(body)
        assert [each.reason for each in found] == [Reason.CLIENT_UUID, None, Reason.CLIENT_UUID]

    def test_in_our_own_form_is_a_clients_uuid_all_the_same(self) -> None:
        [found] = find(image_part(URL, uuid=engine_uuid(0x432B06447698EAF0)))
        assert found.reason is Reason.CLIENT_UUID

    @pytest.mark.parametrize(
        ("url", "uuid", "trusted", "allowed"),
        [
            (URL, None, False, True), (URL, "a", False, True), (URL, "a", True, True), (URL, "", True, True),
            (URL, "", False, False), (None, "a", True, False), (None, "a", False, False), (None, "", True, False),
            (None, "", False, False), (None, None, True, False), ("", "a", False, False), (URL, 5, True, False),
        ],
    )  # fmt: skip
    def test_empty_or_without_data(self, url: str | None, uuid: object, trusted: bool, allowed: bool) -> None:
        part = image_part(url) | ({} if uuid is None else {"uuid": uuid})
        if allowed:
            assert len(find(part, trust=trusted)) == 1
        else:
            with pytest.raises(Refused):
                find(part, trust=trusted)

    def test_trusted_it_is_kept_beside_the_body(self) -> None:
        [found] = find(image_part(URL, uuid="mine"), trust=True)
        assert (found.uuid, found.reason) == ("mine", None)


def test_bytes_take_the_place_of_a_url() -> None:
    for part in ({"image_url": URL}, {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}):
        body = chat(part)
        [found] = find_media(body, trust_uuid=False, max_items=64)
        set_url(body, found, "data:,")
        assert body["messages"][0]["content"][0]["image_url"]["url"] == "data:,"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["role", "content", "type", "text", "image_url", "url", "uuid", "image_embeds", "video_url"]),
        inner, max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.lists(JSON, max_size=4))
def test_any_messages_are_read_or_refused_and_never_keep_a_uuid_beside_a_medium(messages: list[object]) -> None:
    body = {"messages": copy.deepcopy(messages)}
    try:
        find_media(body, trust_uuid=False, max_items=64)
    except Refused:
        return
    for message in body["messages"]:
        if isinstance(message, dict) and isinstance(message.get("content"), list):
            assert all("uuid" not in part for part in message["content"] if isinstance(part, dict))
