"""Both stores keep the same promises: a directory, and an object store (fsspec's memory standing in for S3)."""

import asyncio
import os
import uuid
from pathlib import Path

import pytest

from schemas.request import Claim
from services.runtime.blobs import BlobGone, Blobs, blob_name
from services.runtime.errors import ConfigError, Transient
from services.runtime.settings import Settings
from tests.fakes import FakeClock

TTL = 8_000


def files_under(root: Path) -> list[Path]:
    return list(root.glob("??/*"))


@pytest.fixture
def clock() -> FakeClock:
    # The stores date what they write by the machine's clock; the fake one starts there.
    import time

    return FakeClock(now_ms=int(time.time() * 1000))


@pytest.fixture(params=["directory", "object store"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "blobs") if request.param == "directory" else f"memory://{uuid.uuid4().hex}/prefix"


@pytest.fixture
def blobs(url: str, clock: FakeClock) -> Blobs:
    return Blobs(url, TTL, clock=clock)


async def test_what_is_put_is_got(blobs: Blobs, clock: FakeClock) -> None:
    claim = await blobs.put(b"pixels", "image/png")
    assert (claim.size, claim.content_type, claim.expires_ms) == (6, "image/png", clock.now_ms() + TTL * 1000)
    assert claim.uri == "blob:" + blob_name(b"pixels")
    assert await blobs.get(claim) == b"pixels"


async def test_the_name_is_the_content(blobs: Blobs) -> None:
    first, again, other = [await blobs.put(data) for data in (b"a", b"a", b"b")]
    assert first.uri == again.uri != other.uri


async def test_empty_and_large_bytes(blobs: Blobs) -> None:
    large = os.urandom(3 << 20)
    for data in (b"", large):
        assert await blobs.get(await blobs.put(data)) == data


async def test_another_process_reads_it(url: str, blobs: Blobs, clock: FakeClock) -> None:
    claim = await blobs.put(b"shared")
    assert await Blobs(url, TTL, clock=clock).get(claim) == b"shared"


async def test_many_at_once_leave_one_whole_blob(blobs: Blobs) -> None:
    data = os.urandom(1 << 20)
    claims = await asyncio.gather(*(blobs.put(data) for _ in range(8)))
    assert len({claim.uri for claim in claims}) == 1
    assert await blobs.get(claims[0]) == data


async def test_a_claim_nobody_put_says_how_to_mend_it(blobs: Blobs) -> None:
    with pytest.raises(BlobGone, match="KVROUTE_BLOB_URL"):
        await blobs.get(Claim(uri="blob:" + "0" * 32, size=1))


async def test_a_claim_with_another_size_is_not_honoured(blobs: Blobs) -> None:
    claim = await blobs.put(b"twelve bytes")
    with pytest.raises(BlobGone, match="damaged"):
        await blobs.get(claim.model_copy(update={"size": 11}))


@pytest.mark.parametrize(
    "uri", ["blob:../../etc/passwd", "blob:", "file:///etc/passwd", "blob:" + "A" * 32, "blob:a/b"]
)
async def test_a_claim_can_not_leave_the_store(blobs: Blobs, uri: str) -> None:
    with pytest.raises(BlobGone, match="expected a claim"):
        await blobs.get(Claim.model_construct(uri=uri, size=1))


async def test_sweep_keeps_for_the_time_to_live_and_an_eighth(blobs: Blobs, clock: FakeClock) -> None:
    claim = await blobs.put(b"old")
    clock.advance(TTL)
    assert await blobs.sweep() == 0
    assert await blobs.get(claim) == b"old"
    clock.advance(TTL / 8 + 5)
    assert await blobs.sweep() == 1
    with pytest.raises(BlobGone):
        await blobs.get(claim)
    assert await blobs.sweep() == 0


async def test_what_was_swept_can_be_put_again(blobs: Blobs, clock: FakeClock) -> None:
    await blobs.put(b"again")
    clock.advance(2 * TTL)
    await blobs.sweep()
    assert await blobs.get(await blobs.put(b"again")) == b"again"


async def test_both_stores_are_usable_and_say_what_they_are(blobs: Blobs) -> None:
    assert blobs.usable()
    assert blobs.description.startswith("blobs (")


class TestDirectory:
    async def test_damaged_bytes_are_not_handed_out_and_a_wrong_size_is_mended(self, tmp_path: Path) -> None:
        blobs = Blobs(str(tmp_path), TTL)
        claim = await blobs.put(b"good bytes")
        [path] = files_under(tmp_path)
        path.write_bytes(b"evil bytes")
        with pytest.raises(BlobGone, match="damaged"):
            await blobs.get(claim)
        path.write_bytes(b"")
        assert await blobs.get(await blobs.put(b"good bytes")) == b"good bytes"

    async def test_putting_again_renews_what_is_getting_old(self, tmp_path: Path, clock: FakeClock) -> None:
        blobs = Blobs(str(tmp_path), TTL, clock=clock)
        await blobs.put(b"kept")
        [path] = files_under(tmp_path)
        old = clock.now_ms() / 1000 - TTL / 2
        os.utime(path, (old, old))
        claim = await blobs.put(b"kept")
        clock.advance(TTL)
        assert await blobs.sweep() == 0
        assert await blobs.get(claim) == b"kept"

    async def test_sweep_leaves_strangers_files_and_takes_what_crashed_writers_left(
        self, tmp_path: Path, clock: FakeClock
    ) -> None:
        blobs = Blobs(str(tmp_path), TTL, clock=clock)
        folder = tmp_path / "ab"
        folder.mkdir()
        for name in ("notes.txt", ".new-crashed"):
            (folder / name).write_bytes(b"x")
        clock.advance(10 * TTL)
        await blobs.sweep()
        assert [path.name for path in folder.iterdir()] == ["notes.txt"]

    async def test_a_full_disk_may_heal(self, tmp_path: Path) -> None:
        (tmp_path / "blobs").write_text("a file where the folder should be")
        blobs = Blobs(str(tmp_path / "blobs"), TTL)
        assert not blobs.usable()
        with pytest.raises(Transient, match="could not keep 3 bytes"):
            await blobs.put(b"abc")

    async def test_the_default_lies_under_data_dir(self, tmp_path: Path) -> None:
        blobs = Blobs.of(Settings(data_dir=tmp_path))
        await blobs.put(b"x")
        assert files_under(tmp_path / "blobs")
        assert "this host only" in blobs.description

    def test_file_urls_are_directories(self, tmp_path: Path) -> None:
        assert "this host only" in Blobs(f"file://{tmp_path}", TTL).description


def test_an_unknown_store_says_what_is_expected() -> None:
    with pytest.raises(ConfigError, match="s3://bucket/prefix"):
        Blobs("nosuch://bucket", TTL)


def test_a_store_whose_package_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match=r"kvroute\[s3\]"):
        Blobs("s3://bucket/prefix", TTL)
