"""Which image it is: by URL, by content, by what the server says, within a tenant's scope."""

import pytest

from schemas.media import IdentitySource, MediaItem, MediaKind
from services.kv.identity import client_identity, scoped, url_identity
from services.kv.reason import Reason
from services.media.decoding import Decoding
from services.media.pixels import decode_image
from tests.unit.media.conftest import MakeStage, Stage, image_part
from tests.unit.media.images import data_uri, encoded, image
from tests.unit.media.site import Site

PNG = encoded()
LARGE = encoded(image(300, 200), compress_level=0)


@pytest.fixture
async def web(site: Site) -> Site:
    site.files = {
        "/a.png": PNG,
        "/b.png": PNG,
        "/c.png": encoded(image(seed=3)),
        "/large.png": LARGE,
        "/v.mp4": b"video",
    }
    return site


def seen(item: MediaItem) -> tuple[IdentitySource, bool, Reason | None]:
    return item.source, item.forward, item.reason


class TestUrl:
    async def test_is_the_url_and_the_size_comes_from_the_header(self, stage: Stage, web: Site) -> None:
        url = web.url("/a.png?sig=1")
        [item] = await stage.items(image_part(url))
        assert seen(item) == (IdentitySource.URL, True, None)
        assert item.identity == item.url_hash == url_identity(url)
        assert (item.width, item.height, item.size_bytes, item.format) == (30, 20, len(PNG), "PNG")
        assert (item.host, item.path) == ("127.0.0.1", "/a.png")
        assert stage.body["messages"][0]["content"][0]["image_url"]["url"] == url

    async def test_golden(self, make_stage: MakeStage) -> None:
        """Source: docs/design.md, section 5. Nobody listens there, so only the identity is compared."""
        stage = await make_stage(media_fetch_seconds=0.05)
        for url, expected in (
            ("https://example.com/a.png", 0x432B06447698EAF0),
            ("https://example.com/a.png?v=2", 0x1713542C1F1FB66D),
            ("data:image/png;base64,AAAA", 0xC4A60AB824C912A1),
        ):
            [item] = await stage.items(image_part(url))
            assert item.identity == expected

    async def test_a_data_uri_is_its_text(self, stage: Stage) -> None:
        url = data_uri(PNG)
        [item] = await stage.items(image_part(url))
        assert seen(item) == (IdentitySource.URL, True, None)
        assert item.identity == url_identity(url)
        assert (item.host, item.path, item.width, item.claim) == (None, "data:", 30, None)
        assert stage.body["messages"][0]["content"][0]["image_url"]["url"] == url

    async def test_a_large_data_uri_is_claimed(self, stage: Stage) -> None:
        url = data_uri(LARGE)
        [item] = await stage.items(image_part(url))
        assert item.identity == url_identity(url)
        assert item.claim is not None
        assert item.claim.content_type == "image/png"
        assert await stage.app.blobs.get(item.claim) == LARGE
        assert stage.body["messages"][0]["content"][0]["image_url"]["url"] == "data:,"
        assert stage.resolved.body_claim is None

    @pytest.mark.parametrize("ranges", [True, False])
    async def test_costs_a_few_kilobytes(self, stage: Stage, web: Site, ranges: bool) -> None:
        web.ranges = ranges
        web.files["/photo.jpg"] = encoded(image(800, 600), "JPEG", quality=100) + b"\0" * 3_000_000
        [item] = await stage.items(image_part(web.url("/photo.jpg")))
        assert (item.width, item.size_bytes) == (800, len(web.files["/photo.jpg"]))
        if ranges:
            assert web.sent_bytes == 4096

    async def test_asked_again_costs_no_request(self, stage: Stage, web: Site) -> None:
        for _ in range(3):
            await stage.items(image_part(web.url("/a.png")), image_part(web.url("/a.png")))
        assert web.requests["/a.png"] == 1
        stage.harness.clock.advance(3700)
        await stage.items(image_part(web.url("/a.png")))
        assert web.requests["/a.png"] == 2

    async def test_a_failure_is_tried_again_soon(self, stage: Stage, web: Site) -> None:
        web.statuses = {"/a.png": 503}
        for _ in range(2):
            [item] = await stage.items(image_part(web.url("/a.png")))
            assert item.reason is Reason.FETCH_FAILED
        assert web.requests["/a.png"] == 1
        web.statuses = {}
        stage.harness.clock.advance(6)
        [item] = await stage.items(image_part(web.url("/a.png")))
        assert item.reason is None

    async def test_the_cache_is_bounded(self, make_stage: MakeStage, web: Site) -> None:
        stage = await make_stage(media_size_cache=1)
        for path in ("/a.png", "/b.png", "/a.png"):
            await stage.items(image_part(web.url(path)))
        assert web.requests["/a.png"] == 2

    async def test_exif_turns_the_size(self, stage: Stage, web: Site) -> None:
        web.files["/turned.jpg"] = encoded(image_format="JPEG", orientation=6)
        [item] = await stage.items(image_part(web.url("/turned.jpg")))
        assert (item.width, item.height) == (20, 30)


class TestContent:
    async def test_is_the_pixels_wherever_they_come_from(self, stage: Stage, web: Site) -> None:
        items = await stage.items(
            image_part(web.url("/a.png")), image_part(web.url("/b.png")),
            image_part(data_uri(encoded(image_format="BMP"))),
            image_part(web.url("/c.png")), identity="content",
        )  # fmt: skip
        expected = decode_image(PNG, 10**9).identity
        assert [item.identity == expected for item in items] == [True, True, True, False]
        assert all(seen(item) == (IdentitySource.CONTENT, True, None) for item in items)

    async def test_travels_with_the_very_bytes(self, stage: Stage, web: Site) -> None:
        small, large = await stage.items(
            image_part(web.url("/a.png")), image_part(web.url("/large.png")), identity="content"
        )
        content = stage.body["messages"][0]["content"]
        assert content[0]["image_url"]["url"] == data_uri(PNG)
        assert small.claim is None
        assert content[1]["image_url"]["url"] == "data:,"
        assert large.claim is not None
        assert await stage.app.blobs.get(large.claim) == LARGE

    async def test_is_fetched_each_time_but_once_at_a_time(self, stage: Stage, web: Site) -> None:
        await stage.items(*[image_part(web.url("/a.png"))] * 4, identity="content")
        await stage.items(image_part(web.url("/a.png")), identity="content")
        assert web.requests["/a.png"] == 2

    async def test_a_failed_decoding_leaves_no_identity(self, stage: Stage, web: Site) -> None:
        web.files["/bad.png"] = PNG[:-40]
        [item] = await stage.items(image_part(web.url("/bad.png")), identity="content")
        assert (item.identity, item.source, item.reason) == (None, IdentitySource.NONE, Reason.DECODE_FAILED)

    async def test_in_a_process_of_its_own(self) -> None:
        decoding = Decoding(1)
        try:
            assert await decoding.decode(PNG, 10**6) == decode_image(PNG, 10**6)
        finally:
            decoding.close()


class TestValidated:
    async def test_changes_with_what_the_server_says(self, stage: Stage, web: Site) -> None:
        identities = set()
        for headers in ({"ETag": '"1"'}, {"ETag": '"2"'}, {"Last-Modified": "Sat, 01 Jan 2022 00:00:00 GMT"}, {}):
            web.headers = headers
            [item] = await stage.items(image_part(web.url("/a.png")), identity="validated")
            assert seen(item) == (IdentitySource.URL, True, None)
            identities.add(item.identity)
        web.files["/a.png"] = encoded(image(40, 20))
        [item] = await stage.items(image_part(web.url("/a.png")), identity="validated")
        assert len(identities | {item.identity, url_identity(web.url("/a.png"))}) == 6

    async def test_with_nothing_said_it_is_not_forwarded(self, stage: Stage, web: Site) -> None:
        web.ranges, web.chunked = False, True
        [item] = await stage.items(image_part(web.url("/a.png")), identity="validated")
        assert seen(item) == (IdentitySource.URL, False, Reason.IDENTITY_NOT_FORWARDABLE)
        assert item.identity is not None

    async def test_a_data_uri_needs_no_server(self, stage: Stage) -> None:
        [item] = await stage.items(image_part(data_uri(PNG)), identity="validated")
        assert item.identity == url_identity(data_uri(PNG))


class TestPrecedence:
    @pytest.mark.parametrize(
        ("requested", "by_model", "default", "expected"),
        [
            ("url", {"m": "content"}, "content", IdentitySource.URL),
            (None, {"m": "content"}, "url", IdentitySource.CONTENT),
            (None, {"other": "content"}, "url", IdentitySource.URL),
            (None, {}, "content", IdentitySource.CONTENT),
        ],
    )
    async def test_request_then_model_then_default(
        self,
        make_stage: MakeStage,
        requested: str | None,
        by_model: dict[str, str],
        default: str,
        expected: IdentitySource,
    ) -> None:
        stage = await make_stage(identity_by_model=by_model, identity=default)
        asked = {} if requested is None else {"identity": requested}
        [item] = await stage.items(image_part(data_uri(PNG)), **asked)
        assert item.source is expected

    async def test_an_unknown_mode_is_said_at_start(self, make_stage: MakeStage) -> None:
        from services.runtime.errors import ConfigError

        with pytest.raises(ConfigError, match="url, content, validated"):
            await make_stage(identity_by_model={"m": "magic"})


class TestScope:
    async def test_tenant_salt_and_key(self, make_stage: MakeStage) -> None:
        url = data_uri(PNG)
        plain = url_identity(url)
        for key in (None, "secret"):
            stage = await make_stage(identity_key=key)
            for scope in ({}, {"tenant": "t"}, {"cache_salt": "s"}, {"tenant": "t", "cache_salt": "s"}):
                [item] = await stage.items(image_part(url), **scope)
                expected = scoped(
                    plain, scope.get("tenant", ""), scope.get("cache_salt"), key.encode() if key else None
                )
                assert item.identity == expected
                assert item.url_hash == plain

    async def test_the_bodys_salt_scopes_too_and_the_requests_reaches_the_body(self, stage: Stage) -> None:
        url = data_uri(PNG)
        from tests.unit.media.conftest import chat

        await stage.push({"body": chat(image_part(url), cache_salt="s")})
        assert stage.resolved.media[0].identity == scoped(url_identity(url), "", "s")
        [_] = await stage.items(image_part(url), cache_salt="s")
        assert stage.body["cache_salt"] == "s"

    async def test_expiring_parameters_are_left_out_for_tenants_only(self, make_stage: MakeStage, web: Site) -> None:
        stage = await make_stage(identity_drop_params={"127.0.0.1": "sig+expires"})
        url = web.url("/a.png")
        tenants = [
            (await stage.items(image_part(f"{url}?{query}"), tenant="t"))[0].identity
            for query in ("id=1&sig=a&expires=5", "sig=b&id=1", "id=1", "id=2&sig=a")
        ]
        assert tenants[0] == tenants[1] == tenants[2] != tenants[3]
        [one, two] = await stage.items(image_part(f"{url}?id=1&sig=a"), image_part(f"{url}?id=1&sig=b"))
        assert one.identity != two.identity


class TestClientUuid:
    async def test_untrusted_is_removed_and_ends_exactness(self, stage: Stage) -> None:
        [item] = await stage.items(image_part(data_uri(PNG), uuid="mine"))
        assert seen(item) == (IdentitySource.URL, False, Reason.CLIENT_UUID)
        assert "uuid" not in (stage.resolved.body or "")

    async def test_trusted_is_the_identity_within_its_tenant(self, make_stage: MakeStage) -> None:
        stage = await make_stage(media_trust_uuid=True)
        [item] = await stage.items(image_part(data_uri(PNG), uuid="mine"), tenant="t")
        assert seen(item) == (IdentitySource.CLIENT, True, None)
        assert item.identity == scoped(client_identity("t", "mine"), "t")
        assert item.width == 30
        assert "uuid" not in (stage.resolved.body or "")


class TestBytesOnly:
    """KVROUTE_MEDIA_FORWARD=bytes: the engine never fetches."""

    @pytest.fixture
    async def strict(self, make_stage: MakeStage) -> Stage:
        return await make_stage(media_forward="bytes")

    async def test_urls_become_bytes(self, strict: Stage, web: Site) -> None:
        small, large = await strict.items(image_part(web.url("/a.png")), image_part(web.url("/large.png")))
        assert (small.identity, small.source) == (url_identity(web.url("/a.png")), IdentitySource.URL)
        content = strict.body["messages"][0]["content"]
        assert content[0]["image_url"]["url"] == data_uri(PNG)
        assert content[1]["image_url"]["url"] == "data:,"
        assert large.claim is not None
        assert "http://" not in (strict.resolved.body or "")

    async def test_videos_too_though_they_are_not_exact(self, strict: Stage, web: Site) -> None:
        web.content_types = {"/v.mp4": "video/mp4"}
        [item] = await strict.items({"type": "video_url", "video_url": {"url": web.url("/v.mp4")}})
        assert (item.kind, item.reason) == (MediaKind.VIDEO, Reason.UNSUPPORTED_MODEL)
        assert strict.body["messages"][0]["content"][0]["video_url"]["url"] == data_uri(b"video", "video/mp4")

    async def test_bytes_that_are_no_image_still_travel(self, strict: Stage, web: Site) -> None:
        web.files["/page"] = b"<html>"
        [item] = await strict.items(image_part(web.url("/page")))
        assert item.reason is Reason.DECODE_FAILED
        assert "http://" not in (strict.resolved.body or "")

    async def test_what_can_not_be_had_ends_the_request(self, strict: Stage, web: Site) -> None:
        await strict.ask(image_part(web.url("/missing")))
        assert strict.refusal == (400, "media_unavailable")

    async def test_what_can_not_be_replaced_ends_the_request(self, strict: Stage, web: Site) -> None:
        await strict.ask({"type": "input_image", "image_url": web.url("/a.png")})
        assert strict.refusal == (400, "media_unavailable")

    async def test_so_does_a_full_memory(self, make_stage: MakeStage, web: Site) -> None:
        stage = await make_stage(media_forward="bytes")
        stage.app.budget.held = stage.harness.settings.media_memory_bytes
        await stage.ask(image_part(web.url("/a.png")))
        assert stage.refusal == (503, "media_busy")


class TestVideo:
    """Of a model without a folder; test_video_items.py has the others."""

    async def test_has_an_identity_and_is_not_exact(self, stage: Stage, web: Site) -> None:
        url = web.url("/v.mp4")
        [item] = await stage.items({"type": "video_url", "video_url": {"url": url}})
        assert seen(item) == (IdentitySource.URL, False, Reason.UNSUPPORTED_MODEL)
        assert item.identity == url_identity(url)
        assert web.total == 0

    async def test_a_large_inline_one_is_claimed(self, stage: Stage) -> None:
        data = bytes(100_000)
        [item] = await stage.items({"type": "video_url", "video_url": {"url": data_uri(data, "video/mp4")}})
        assert item.claim is not None
        assert (item.claim.size, item.claim.content_type) == (100_000, "video/mp4")
