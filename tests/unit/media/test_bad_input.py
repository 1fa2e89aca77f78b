"""Whatever comes in: a clear error or a reason, and the next request is served."""

import orjson
import pytest

from schemas.lifecycle import LifecycleEvent
from services.kv.reason import Reason
from services.runtime.topics import DECISIONS
from tests.unit.media.conftest import REPLY_TO, MakeStage, Stage, chat, image_part
from tests.unit.media.images import data_uri, encoded, huge_png
from tests.unit.media.site import Site

ADDRESSED = {"request_id": "r-1", "reply_to": REPLY_TO}


async def serves(stage: Stage) -> bool:
    """Whether the next request goes through."""
    stage.harness.sender.clear()
    await stage.ask(image_part(data_uri(encoded())))
    return len(stage.passed_on) == 1 and stage.resolved.media[0].reason is None


class TestWhatIsNoRequest:
    """Dead letters, and an answer if somebody who waits can be made out."""

    @pytest.mark.parametrize(
        ("value", "code"),
        [
            (None, "empty"),
            (b"", "empty"),
            (b"not json", "not_json"),
            (b"\xff\xfe", "not_json"),
            (b"null", "not_an_object"),
            (b"[]", "not_an_object"),
            (b"12", "not_an_object"),
            (b'"text"', "not_an_object"),
            (b"{}", "invalid_message"),
            (b'{"body": null}', "invalid_message"),
            (b'{"body": "text"}', "invalid_message"),
            (b'{"body": {}, "priority": "high"}', "invalid_message"),
            (b'{"body": {}, "priority": "%b"}' % (b"9" * 40), "invalid_message"),
            (b'{"body": {}, "deadline_ms": "-%b"}' % (b"9" * 40), "invalid_message"),
            (b'{"body": {}, "request_id": "a/b"}', "invalid_message"),
            (b'{"body": {}, "tenant": "../x"}', "invalid_message"),
            (b'{"body": {}, "body_claim": {"uri": "blob:../../x", "size": 1}}', "invalid_message"),
            (b'{"body": {}, "identity": "magic"}', "invalid_message"),
            (b"[" * 10_000 + b"]" * 10_000, "not_json"),
            (b'{"body":' + b"[" * 10_000 + b"]" * 10_000 + b"}", "not_json"),
            (b'{"body":{"x":[' + b"[]," * 300_000 + b"0]}}", "too_complex"),
            (rb'{"body": {"model": "\ud800"}}', "not_json"),
        ],
    )
    async def test_goes_to_the_dead_letters(self, stage: Stage, value: bytes | None, code: str) -> None:
        await stage.push(value)
        assert [letter.code for letter in stage.harness.dead_letters] == [code]
        assert not stage.harness.sender.sent
        assert await serves(stage)

    @pytest.mark.parametrize(
        ("value", "code"),
        [
            (orjson.dumps(ADDRESSED | {"body": 5}), "invalid_message"),
            (orjson.dumps(ADDRESSED), "invalid_message"),
            (orjson.dumps(ADDRESSED)[:-1] + rb',"body":{"model":"m","messages":"\udfff"}}', "not_json"),
        ],
    )
    async def test_is_answered_if_who_waits_is_known(self, stage: Stage, value: bytes, code: str) -> None:
        await stage.push(value)
        assert stage.refusal == (400, code)
        assert stage.answers[0].request_id == "r-1"
        assert len(stage.harness.dead_letters) == 1

    @pytest.mark.parametrize("topic", [DECISIONS.name, "kvroute.work.w1.v1", "other", "kvroute.responses.", "", 7])
    async def test_reply_to_names_responses_topics_only(self, stage: Stage, topic: object) -> None:
        await stage.push({"request_id": "r-1", "reply_to": topic, "body": chat()})
        assert [letter.code for letter in stage.harness.dead_letters] == ["invalid_message"]
        assert not stage.harness.sender.sent
        assert await serves(stage)

    async def test_a_reply_to_header_means_nothing(self, stage: Stage) -> None:
        raw = orjson.dumps({"body": chat()})
        await stage.push(raw, headers={"reply_to": DECISIONS.name.encode()})
        assert len(stage.passed_on) == 1
        assert not stage.harness.sender.of(DECISIONS.name)

    async def test_says_what_was_expected_without_repeating_what_was_found(self, stage: Stage) -> None:
        await stage.push(ADDRESSED | {"body": {}, "priority": "SECRET", "session_id": "SECRET/"})
        [letter] = stage.harness.dead_letters
        assert "priority" in letter.message
        assert "SECRET" not in letter.message
        assert "SECRET" not in (stage.answers[0].error.message if stage.answers[0].error else "")


class TestWhatIsRefused:
    """A request that can be read and can't be served ends with an OpenAI error."""

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"model": "m"},
            {"model": "", "messages": [{"role": "user", "content": "x"}]},
            {"model": 5, "messages": [{"role": "user", "content": "x"}]},
            {"model": "m" * 300, "messages": [{"role": "user", "content": "x"}]},
            {"model": "m", "messages": []},
            {"model": "m", "messages": {}},
            {"model": "m", "messages": None},
            {"model": "m", "messages": [None]},
            {"model": "m", "messages": ["x"]},
            {"model": "m", "messages": [{}]},
            {"model": "m", "messages": [{"role": 1, "content": "x"}]},
            {"model": "m", "messages": [{"role": "user", "content": 1}]},
            {"model": "m", "messages": [{"role": "user", "content": {"type": "text"}}]},
            {"model": "m", "messages": [{"role": "user", "content": [1]}]},
            {"model": "m", "messages": [{"role": "user", "content": [[]]}]},
            {"model": "m", "messages": [{"role": "user", "content": [{}]}]},
            {"model": "m", "messages": [{"role": "user", "content": [{"type": 1}]}]},
            {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": "yes"},
            {"model": "m", "messages": [{"role": "user", "content": "x"}], "cache_salt": ""},
            {"model": "m", "messages": [{"role": "user", "content": "x"}], "cache_salt": 1},
        ],
    )
    async def test_a_body_no_engine_could_read(self, stage: Stage, body: dict[str, object]) -> None:
        await stage.push(ADDRESSED | {"body": body})
        assert stage.refusal == (400, "invalid_request")
        assert stage.facts[-1].event is LifecycleEvent.REFUSED
        assert not stage.harness.dead_letters
        assert await serves(stage)

    async def test_nesting_that_json_reads_and_can_not_write(self, stage: Stage) -> None:
        deep: object = 1
        for _ in range(240):
            deep = [deep]
        raw = orjson.dumps(ADDRESSED | {"body": chat()})[:-2] + b',"x":' + b"[" * 600 + b"]" * 600 + b"}}"
        await stage.push(raw)
        assert stage.refusal == (400, "too_deep")
        assert await serves(stage)

    async def test_a_deadline_in_the_past(self, stage: Stage) -> None:
        await stage.ask(deadline_ms=stage.harness.clock.now_ms() - 1)
        assert stage.refusal == (504, "deadline_exceeded")
        assert await serves(stage)

    async def test_a_request_cancelled_before_it_came(self, stage: Stage) -> None:
        from schemas.control import Control, ControlKind

        order = Control(kind=ControlKind.CANCEL, at_ms=0, request_id="r-9")
        stage.harness.cancellations.take(order)
        await stage.ask(request_id="r-9")
        assert stage.refusal == (499, "cancelled")
        assert [fact.event for fact in stage.facts] == [LifecycleEvent.CANCELLED]

    async def test_salts_that_differ(self, stage: Stage) -> None:
        await stage.push(ADDRESSED | {"cache_salt": "a", "body": chat(cache_salt="b")})
        assert stage.refusal == (400, "invalid_request")

    async def test_far_too_many_media(self, make_stage: MakeStage) -> None:
        stage = await make_stage(media_max_items=2)
        await stage.ask(*[image_part(data_uri(encoded()))] * 9)
        assert stage.refusal == (400, "too_many_media")

    @pytest.mark.parametrize(
        "url",
        [
            "file:///etc/passwd",
            "blob:" + "0" * 32,
            "ftp://example.com/a.png",
            "s3://bucket/a.png",
            "javascript:alert(1)",
            "a.png",
            "//example.com/a.png",
            "http://127.0.0.1/a.png",
            "http://169.254.169.254/latest/meta-data/",
            "http://[::1]/a.png",
            "http://localhost/a.png",
            "http://user:pw@93.184.216.34/a.png",
        ],
    )
    @pytest.mark.parametrize("kind", ["image_url", "video_url", "audio_url"])
    async def test_addresses_inside_and_other_schemes(self, make_stage: MakeStage, url: str, kind: str) -> None:
        stage = await make_stage(media_allow_private=False)
        await stage.ask({"type": kind, kind: {"url": url}})
        assert stage.refusal == (400, "forbidden_url")
        assert await serves(stage)

    async def test_an_unsupported_part_can_not_smuggle_an_address(self, make_stage: MakeStage) -> None:
        stage = await make_stage(media_allow_private=False)
        await stage.ask({"type": "input_image", "image_url": "http://10.0.0.1/x"})
        assert stage.refusal == (400, "forbidden_url")


class TestImagesThatAreNone:
    """The request goes on; the item says why it is not exact."""

    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("data:image/png;base64,@@@@", Reason.DECODE_FAILED),
            ("data:image/png;base64,AAAA", Reason.DECODE_FAILED),
            ("data:image/png;base64,AAA", Reason.DECODE_FAILED),
            ("data:image/png;base64,", Reason.DECODE_FAILED),
            ("data:image/png,plain", Reason.DECODE_FAILED),
            ("data:image/png;base64", Reason.DECODE_FAILED),
            (data_uri(b"<html><body>404</body></html>"), Reason.DECODE_FAILED),
            (data_uri(encoded(image_format="JPEG")[:400]), Reason.DECODE_FAILED),
            (data_uri(encoded(image_format="JPEG")[:-40]), Reason.DECODE_FAILED),
            (data_uri(encoded()[:-30]), Reason.DECODE_FAILED),
            (data_uri(huge_png(20_000, 20_000)), Reason.TOO_LARGE),
            (data_uri(b"\0\0\0\x18ftypheic" + b"\0" * 60), Reason.DECODE_FAILED),
        ],
    )
    @pytest.mark.parametrize("identity", ["url", "content", "validated"])
    async def test_inline(self, stage: Stage, url: str, reason: Reason, identity: str) -> None:
        [item] = await stage.items(image_part(url), identity=identity)
        assert (item.reason, item.forward) == (reason, False)
        assert await serves(stage)

    @pytest.mark.parametrize(
        ("path", "reason"),
        [
            ("/empty", Reason.DECODE_FAILED),
            ("/page.html", Reason.DECODE_FAILED),
            ("/huge.png", Reason.TOO_LARGE),
            ("/missing", Reason.FETCH_FAILED),
            ("/broken", Reason.FETCH_FAILED),
            ("/loop", Reason.FETCH_FAILED),
        ],
    )
    @pytest.mark.parametrize("identity", ["url", "content", "validated"])
    @pytest.mark.parametrize("ranges", [True, False])
    async def test_served(
        self, stage: Stage, site: Site, path: str, reason: Reason, identity: str, ranges: bool
    ) -> None:
        site.ranges = ranges
        site.files = {"/empty": b"", "/page.html": b"<html>" * 100, "/huge.png": huge_png(20_000, 20_000)}
        site.statuses = {"/broken": 500}
        site.redirects = {"/loop": "/loop"}
        [item] = await stage.items(image_part(site.url(path)), identity=identity)
        assert (item.reason, item.forward) == (reason, False)
        assert await serves(stage)

    async def test_a_truncated_jpeg_is_found_out_by_decoding(self, stage: Stage, site: Site) -> None:
        site.files["/cut.jpg"] = encoded(image_format="JPEG")[:-200]
        [item] = await stage.items(image_part(site.url("/cut.jpg")), identity="content")
        assert item.reason is Reason.DECODE_FAILED

    async def test_nobody_listens(self, stage: Stage, site: Site) -> None:
        url = site.url("/a.png")
        await site.stop()
        [item] = await stage.items(image_part(url))
        assert item.reason is Reason.FETCH_FAILED
        assert await serves(stage)

    async def test_a_name_nobody_knows(self, stage: Stage) -> None:
        [item] = await stage.items(image_part("http://no-such-host.invalid/a.png"))
        assert item.reason is Reason.FETCH_FAILED

    async def test_a_server_that_does_not_answer(self, make_stage: MakeStage, site: Site) -> None:
        site.files["/slow.png"] = encoded()
        site.delay = 30
        stage = await make_stage(media_fetch_seconds=0.05)
        [item] = await stage.items(image_part(site.url("/slow.png")))
        assert (item.reason, "0.05 s" in (item.detail or "")) == (Reason.FETCH_FAILED, True)

    async def test_more_bytes_than_allowed(self, make_stage: MakeStage, site: Site) -> None:
        site.files["/a.png"] = encoded(compress_level=0)
        for chunked in (False, True):
            site.chunked = chunked
            stage = await make_stage(media_max_bytes=1024)
            [item] = await stage.items(image_part(site.url("/a.png")), identity="content")
            assert item.reason is Reason.TOO_LARGE
        [item] = await stage.items(image_part(data_uri(site.files["/a.png"])))
        assert item.reason is Reason.TOO_LARGE

    async def test_more_media_than_are_looked_at(self, make_stage: MakeStage) -> None:
        stage = await make_stage(media_max_items=1)
        items = await stage.items(*[image_part(data_uri(encoded()))] * 3)
        assert [item.reason for item in items] == [None, Reason.BUDGET_EXCEEDED, Reason.BUDGET_EXCEEDED]

    async def test_nothing_stays_held(self, stage: Stage, site: Site) -> None:
        site.files = {"/a.png": encoded(), "/bad": b"<html>"}
        for path in site.files:
            for identity in ("url", "content"):
                await stage.items(image_part(site.url(path)), identity=identity)
        assert stage.app.budget.held == 0


class TestText:
    async def test_nul_passes_through(self, stage: Stage) -> None:
        await stage.push({"body": chat({"type": "text", "text": "a\0b"})})
        assert stage.body["messages"][0]["content"][0]["text"] == "a\0b"

    async def test_a_placeholder_typed_as_text_is_text(self, stage: Stage) -> None:
        await stage.ask({"type": "text", "text": "<|image_pad|>"})
        assert stage.resolved.media == []


class TestTheSameRequestTwice:
    async def test_is_passed_on_twice_under_one_key(self, stage: Stage) -> None:
        for _ in range(2):
            await stage.push({"request_id": "same", "tenant": "t", "body": chat()})
        assert [message.key for message in stage.passed_on] == ["t/same"] * 2
