"""The address that was checked is the one that is connected to."""

import pytest

from services.media import connect
from services.media.connect import FencedResolver
from services.media.fence import Fenced, Rules
from tests.fakes import FakeClock
from tests.unit.media.conftest import MakeStage, image_part
from tests.unit.media.images import encoded
from tests.unit.media.site import Site


class Names:
    """A name server that tests write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, list[str]] = {}
        self.asked: list[str] = []
        monkeypatch.setattr(connect, "_getaddrinfo", self._answer)

    def _answer(self, host: str) -> list[str]:
        self.asked.append(host)
        if host not in self.answers:
            raise OSError("unknown")
        return self.answers[host]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


async def test_a_public_name(names: Names) -> None:
    names.answers["example.com"] = ["93.184.216.34", "2606:2800:21f::1"]
    resolved = await FencedResolver(Rules(), FakeClock()).resolve("example.com", 443)
    assert [(entry["host"], entry["port"]) for entry in resolved] == [("93.184.216.34", 443), ("2606:2800:21f::1", 443)]


@pytest.mark.parametrize("inside", ["10.0.0.1", "127.0.0.1", "::1", "fd00::1", "169.254.169.254"])
async def test_one_address_inside_refuses_the_name_whole(names: Names, inside: str) -> None:
    names.answers["rebind.example"] = ["93.184.216.34", inside]
    with pytest.raises(Fenced):
        await FencedResolver(Rules(), FakeClock()).resolve("rebind.example", 80)


async def test_answers_are_remembered_for_half_a_minute_and_failures_for_seconds(names: Names) -> None:
    clock = FakeClock()
    resolver = FencedResolver(Rules(), clock)
    for wait, host in ((0, "a.example"), (4, "a.example"), (2, "a.example")):
        clock.advance(wait)
        with pytest.raises(OSError, match="no address"):
            await resolver.addresses(host)
    assert names.asked == ["a.example"] * 2
    names.answers["b.example"] = ["1.1.1.1"]
    for wait in (0, 29, 2):
        clock.advance(wait)
        await resolver.addresses("b.example")
    assert names.asked[2:] == ["b.example"] * 2


async def test_the_memory_is_bounded(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_CACHED_NAMES", 3)
    resolver = FencedResolver(Rules(), FakeClock())
    for number in range(10):
        names.answers[f"{number}.example"] = ["1.1.1.1"]
        await resolver.addresses(f"{number}.example")
    assert len(resolver._answers) == 3


class TestInTheStage:
    @pytest.mark.parametrize("identity", ["url", "content", "validated"])
    async def test_a_name_that_leads_inside_ends_the_request(
        self, make_stage: MakeStage, names: Names, identity: str
    ) -> None:
        names.answers["evil.example"] = ["10.0.0.1"]
        stage = await make_stage(media_allow_private=False)
        await stage.ask(image_part("http://evil.example/a.png"), identity=identity)
        assert stage.refusal == (400, "forbidden_url")

    async def test_it_is_checked_though_only_the_engine_would_fetch(self, make_stage: MakeStage, names: Names) -> None:
        names.answers["evil.example"] = ["10.0.0.1"]
        stage = await make_stage(media_allow_private=False)
        await stage.ask({"type": "video_url", "video_url": {"url": "http://evil.example/a.mp4"}})
        assert stage.refusal == (400, "forbidden_url")

    async def test_a_name_is_reached_at_the_checked_address(
        self, make_stage: MakeStage, names: Names, site: Site
    ) -> None:
        site.files["/a.png"] = encoded()
        names.answers["media.example"] = ["127.0.0.1"]
        stage = await make_stage()
        url = site.url("/a.png").replace("127.0.0.1", "media.example")
        [item] = await stage.items(image_part(url))
        assert (item.width, item.host) == (30, "media.example")

    @pytest.mark.parametrize("identity", ["url", "content", "validated"])
    async def test_a_redirect_inside_is_a_refusal(
        self, make_stage: MakeStage, names: Names, site: Site, identity: str
    ) -> None:
        site.redirects = {"/a.png": "http://deny.example/secret"}
        stage = await make_stage(media_deny_hosts=("deny.example",))
        await stage.ask(image_part(site.url("/a.png")), identity=identity)
        assert stage.refusal == (400, "forbidden_url")

    @pytest.mark.parametrize("location", ["file:///etc/passwd", "http://user@x.example/", "ftp://x/"])
    async def test_a_redirect_to_another_scheme_is_a_refusal(
        self, make_stage: MakeStage, site: Site, location: str
    ) -> None:
        site.redirects = {"/a.png": location}
        stage = await make_stage()
        await stage.ask(image_part(site.url("/a.png")))
        assert stage.refusal == (400, "forbidden_url")

    async def test_redirects_are_followed_up_to_the_limit(self, make_stage: MakeStage, site: Site) -> None:
        site.files["/end.png"] = encoded()
        site.redirects = {"/3": "/2", "/2": "/1", "/1": "end.png"}
        assert [item.width for item in await (await make_stage()).items(image_part(site.url("/3")))] == [30]
        [item] = await (await make_stage(media_max_redirects=2)).items(image_part(site.url("/3")))
        assert item.reason is not None
