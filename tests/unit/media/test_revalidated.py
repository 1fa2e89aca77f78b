"""Decoded identities by URL: fresh for as long as the server says, then asked again, never beyond their age."""

from __future__ import annotations

import pytest

from schemas.media import IdentitySource
from services.media.fetch import Validators
from services.media.revalidated import Known, Revalidated
from tests.fakes import FakeClock
from tests.unit.media.clips import clip
from tests.unit.media.conftest import MakeStage, Stage, image_part
from tests.unit.media.images import encoded, image
from tests.unit.media.site import Site

TAGGED = Validators(etag='"1"')
DATED = Validators(last_modified="Mon, 01 Jan 2024 00:00:00 GMT")
SILENT = Validators(length=5)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def cache(clock: FakeClock, entries: int = 10, size_limit: int = 100, seconds: float = 60) -> Revalidated[str]:
    return Revalidated(clock, entries=entries, size_limit=size_limit, seconds=seconds)


class TestCache:
    @pytest.mark.parametrize("validators", [TAGGED, DATED])
    def test_without_an_age_the_server_is_asked_each_time(self, clock: FakeClock, validators: Validators) -> None:
        known = cache(clock)
        known.put("k", "v", validators, 0, 1)
        assert known.get("k") == Known("v", validators, fresh=False)

    def test_within_its_age_it_is_not_asked(self, clock: FakeClock) -> None:
        known = cache(clock)
        known.put("k", "v", SILENT, 10, 1)
        clock.advance(9.9)
        assert known.get("k") == Known("v", SILENT, fresh=True)
        clock.advance(0.2)
        assert known.get("k") is None, "nothing can be asked about it"
        assert len(known) == 0

    def test_a_confirmation_makes_it_fresh_again(self, clock: FakeClock) -> None:
        known = cache(clock)
        known.put("k", "v", TAGGED, 10, 1)
        clock.advance(11)
        known.confirm("k", 10)
        assert known.get("k") == Known("v", TAGGED, fresh=True)

    def test_nothing_outlives_its_age_however_often_it_is_confirmed(self, clock: FakeClock) -> None:
        known = cache(clock, seconds=60)
        known.put("k", "v", TAGGED, 1000, 1)
        clock.advance(59)
        known.confirm("k", 1000)
        clock.advance(2)
        assert known.get("k") is None

    def test_what_cannot_be_asked_about_and_has_no_age_is_not_kept(self, clock: FakeClock) -> None:
        known = cache(clock)
        known.put("k", "v", SILENT, 0, 1)
        assert len(known) == 0

    def test_entries_and_bytes_are_bounded(self, clock: FakeClock) -> None:
        known = cache(clock, entries=3, size_limit=10)
        for number in range(5):
            known.put(number, "v", TAGGED, 0, 1)
        assert [number for number in range(5) if known.get(number)] == [2, 3, 4]
        known.put("large", "v", TAGGED, 0, 9)
        assert [key for key in (2, 3, 4, "large") if known.get(key)] == [4, "large"]
        known.put("too large", "v", TAGGED, 0, 11)
        assert len(known) == 0

    def test_none_at_all(self, clock: FakeClock) -> None:
        known = cache(clock, entries=0)
        known.put("k", "v", TAGGED, 10, 1)
        assert known.get("k") is None


class TestStage:
    """A URL asked for again costs no download in content mode."""

    URLS = ("/a.png", "/large.png")

    @pytest.fixture
    async def web(self, site: Site) -> Site:
        site.files = {"/a.png": encoded(), "/large.png": encoded(image(300, 200), compress_level=0), "/v.mp4": clip(12)}
        site.headers = {"ETag": '"1"'}
        return site

    @pytest.fixture
    async def content(self, make_stage: MakeStage) -> Stage:
        return await make_stage(identity="content")

    @pytest.mark.parametrize("path", URLS)
    async def test_the_server_confirms_and_no_byte_comes_again(self, content: Stage, web: Site, path: str) -> None:
        [first] = await content.items(image_part(web.url(path)))
        body, sent = content.resolved.body, web.sent_bytes
        [again] = await content.items(image_part(web.url(path)))
        assert again == first
        assert content.resolved.body == body, "the same bytes travel"
        assert (web.sent_bytes, web.requests[path], web.unchanged[path]) == (sent, 2, 1)

    async def test_within_the_servers_age_it_is_not_even_asked(self, content: Stage, web: Site) -> None:
        web.headers = {"Cache-Control": "public, max-age=60"}
        for _ in range(3):
            [item] = await content.items(image_part(web.url("/a.png")))
            assert item.source is IdentitySource.CONTENT
        assert web.requests["/a.png"] == 1

    @pytest.mark.parametrize(
        "headers", [{"Cache-Control": "no-store", "ETag": '"1"'}, {}, {"Cache-Control": "max-age=60", "Age": "60"}]
    )
    async def test_what_a_server_does_not_let_us_keep(self, content: Stage, web: Site, headers: dict[str, str]) -> None:
        web.headers = headers
        for _ in range(2):
            await content.items(image_part(web.url("/a.png")))
        assert web.requests["/a.png"] == 2
        assert not web.unchanged

    async def test_another_version_is_another_image(self, content: Stage, web: Site) -> None:
        [first] = await content.items(image_part(web.url("/a.png")))
        web.files["/a.png"], web.headers = encoded(image(seed=9)), {"ETag": '"2"'}
        [second] = await content.items(image_part(web.url("/a.png")))
        assert second.identity != first.identity

    async def test_a_signature_that_changes_is_the_same_url_to_its_tenant(
        self, make_stage: MakeStage, web: Site
    ) -> None:
        stage = await make_stage(identity="content", identity_drop_params={"127.0.0.1": "@s3"})
        for number in range(2):
            await stage.items(image_part(web.url(f"/a.png?X-Amz-Signature={number}")), tenant="t")
        assert web.unchanged["/a.png"] == 1
        await stage.items(image_part(web.url("/a.png?X-Amz-Signature=2")), tenant="other")
        assert web.unchanged["/a.png"] == 1, "another tenant fetches for itself"

    async def test_many_at_once_share_one_fetch_and_one_decode(self, content: Stage, web: Site) -> None:
        web.delay = 0.05
        items = await content.items(*[image_part(web.url("/a.png"))] * 10)
        assert len({item.identity for item in items}) == 1
        assert web.requests["/a.png"] == 1
