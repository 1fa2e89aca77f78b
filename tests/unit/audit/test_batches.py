"""Many records, one transaction; nothing is lost while the database is away; a bad row stands alone."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.exc import DataError, OperationalError

from services.audit.batches import FIRST_PAUSE, LONGEST_PAUSE, Batches
from services.audit.rows import Rows
from services.runtime.errors import BadRecord

AWAY = OperationalError("insert", {}, Exception("connection refused"))
REJECTED = DataError("insert", {}, Exception("value out of range"))


def rows(name: str) -> Rows:
    return Rows(requests=[{"request_id": name}])


def names(batch) -> list[str]:
    return [one.requests[0]["request_id"] for one in batch]


class Database:
    """Takes batches, or raises what it was told; ``gate`` holds a write until it is opened."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.errors: list[Exception] = []
        self.bad: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    async def write(self, batch) -> None:
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        if self.bad & set(names(batch)):
            raise REJECTED
        self.batches.append(names(batch))


class Pauses(list):
    async def __call__(self, seconds: float) -> None:
        self.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def database():
    return Database()


@pytest.fixture
def pauses():
    return Pauses()


@pytest.fixture
def noted():
    return []


@pytest.fixture
def batches(database, pauses, noted):
    return Batches(database.write, 3, spawn=asyncio.ensure_future, away=noted.append, pause=pauses)


async def test_a_lone_record_is_written_at_once(batches, database):
    await batches.add(rows("a"))
    assert database.batches == [["a"]]


async def test_what_comes_during_a_write_makes_the_next_batches(batches, database):
    database.gate.clear()
    adding = [asyncio.ensure_future(batches.add(rows(name))) for name in "abcdefg"]
    await asyncio.sleep(0)
    database.gate.set()
    await asyncio.gather(*adding)
    assert [name for batch in database.batches for name in batch] == list("abcdefg")
    assert max(map(len, database.batches)) == 3


async def test_add_returns_only_after_the_commit(batches, database):
    database.gate.clear()
    adding = asyncio.ensure_future(batches.add(rows("a")))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not adding.done()
    database.gate.set()
    await adding


async def test_while_the_database_is_away_the_same_batch_waits_longer_and_longer(batches, database, pauses, noted):
    database.errors = [AWAY] * 10
    await batches.add(rows("a"))
    assert database.batches == [["a"]]
    assert pauses[0] == FIRST_PAUSE
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
    assert noted == [AWAY] * 10 + [None]


async def test_a_row_the_database_rejects_stands_alone(batches, database):
    database.bad = {"b"}
    database.gate.clear()
    adding = [asyncio.ensure_future(batches.add(rows(name))) for name in "abc"]
    await asyncio.sleep(0)
    database.gate.set()
    results = await asyncio.gather(*adding, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), BadRecord, type(None)]
    assert "value out of range" in str(results[1])
    assert sorted(name for batch in database.batches for name in batch) == ["a", "c"]


async def test_a_bug_comes_out_as_it_is_and_the_next_batch_is_written(batches, database):
    database.errors = [KeyError("bug")]
    with pytest.raises(KeyError):
        await batches.add(rows("a"))
    await batches.add(rows("b"))
    assert database.batches == [["b"]]


async def test_who_gives_up_waiting_is_not_written(batches, database):
    database.gate.clear()
    first, second = (asyncio.ensure_future(batches.add(rows(name))) for name in "ab")
    for _ in range(3):
        await asyncio.sleep(0)
    third = asyncio.ensure_future(batches.add(rows("c")))
    await asyncio.sleep(0)
    third.cancel()
    await asyncio.gather(third, return_exceptions=True)
    database.gate.set()
    await asyncio.gather(first, second)
    assert "c" not in [name for batch in database.batches for name in batch]
