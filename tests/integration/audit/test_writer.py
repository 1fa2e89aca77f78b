"""The writer on both databases: idempotent, first decision wins, facts in any order make one row."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError

from schemas.lifecycle import LifecycleEvent
from schemas.worker import WorkerState
from services.audit import tables
from services.audit.faults import is_databases_fault, is_rows_fault
from services.audit.merge import OUTCOMES, fold
from services.audit.moments import moment
from services.audit.rows import (
    dead_letter_rows,
    decision_rows,
    lifecycle_rows,
    retired_rows,
    worker_rows,
)
from services.runtime.bus import Record
from tests.fakes.audit_records import (
    NOON_MS,
    candidate,
    dead_letter,
    decision,
    fact,
    finished,
    image,
    record_of,
    worker,
)
from tests.integration.audit.conftest import rows_in


def decided(message, offset=0):
    return decision_rows(message, record_of(message, offset=offset))


async def test_a_decision_comes_back_as_it_was_written(writer, engine):
    rows = decided(decision(media=[image()]))
    await writer.write([rows])
    assert await rows_in(engine, tables.decisions) == rows.decisions
    assert await rows_in(engine, tables.candidates) == rows.candidates
    assert await rows_in(engine, tables.media) == rows.media
    assert await rows_in(engine, tables.requests) == rows.requests


async def test_the_same_batch_again_changes_nothing(writer, engine):
    batch = [
        decided(decision(media=[image()])),
        lifecycle_rows(finished()),
        worker_rows(worker()),
        dead_letter_rows(dead_letter()),
    ]
    await writer.write(batch)
    before = [await rows_in(engine, table) for table in tables.metadata.tables.values()]
    await writer.write(batch)
    await writer.write(batch + batch)
    assert [await rows_in(engine, table) for table in tables.metadata.tables.values()] == before


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "two batches"])
async def test_the_first_record_is_the_decision_and_the_loser_leaves_nothing(writer, engine, together):
    winner = decided(decision(worker_id="w1", candidates=[candidate("w1")], media=[]), offset=10)
    loser = decided(decision(worker_id="w2", media=[image()], candidates=[candidate("w2"), candidate("w1")]), offset=11)
    for batch in [[winner, loser]] if together else [[winner], [loser]]:
        await writer.write(batch)
    assert [(row["worker_id"], row["record_offset"]) for row in await rows_in(engine, tables.decisions)] == [("w1", 10)]
    assert [row["worker_id"] for row in await rows_in(engine, tables.candidates)] == ["w1"]
    assert await rows_in(engine, tables.media) == []


async def test_attempts_are_rows_of_their_own(writer, engine):
    await writer.write([decided(decision(attempt=1)), decided(decision(attempt=2, worker_id="w2"))])
    assert [row["attempt"] for row in await rows_in(engine, tables.decisions)] == [1, 2]
    assert [row["attempts"] for row in await rows_in(engine, tables.requests)] == [2]


async def test_the_same_id_of_two_tenants_is_two_requests(writer, engine):
    await writer.write([decided(decision(tenant="a")), decided(decision(tenant="b"))])
    assert len(await rows_in(engine, tables.decisions)) == 2


async def test_a_request_is_one_row_whoever_speaks_of_it_first(writer, engine):
    accepted = lifecycle_rows(fact(LifecycleEvent.ACCEPTED, attempt=0, after_ms=2, model="qwen3-vl", stream=True))
    await writer.write([decided(decision())])
    await writer.write([accepted])
    (row,) = await rows_in(engine, tables.requests)
    assert row | {"stream": True, "attempts": 1, "accepted_at": moment(NOON_MS + 2), "model": "qwen3-vl"} == row


async def test_facts_in_all_orders_one_by_one_make_the_same_row(writer, engine):
    results = []
    for number, order in enumerate(permutations(range(4))):
        request_id = f"r{number}"
        life = [
            fact(LifecycleEvent.ACCEPTED, request_id, after_ms=10),
            fact(LifecycleEvent.FIRST_TOKEN, request_id, after_ms=120),
            finished(request_id, after_ms=900),
            fact(LifecycleEvent.CANCELLED, request_id, after_ms=950, stage="gateway"),
        ]
        for step in order:
            await writer.write([lifecycle_rows(life[step])])
    for row in await rows_in(engine, tables.outcomes):
        del row["request_id"]
        results.append(row)
    assert len(results) == 24
    assert all(result == results[0] for result in results)
    assert (results[0]["status"], results[0]["ttft_ms"], results[0]["cached_tokens"]) == ("finished", 120, 48)


facts = st.builds(
    fact,
    event=st.sampled_from(sorted(LifecycleEvent)),
    after_ms=st.integers(0, 2),
    stage=st.sampled_from(["agent", "gateway"]),
    worker_id=st.sampled_from([None, "w1", "w2"]),
)


@given(st.lists(st.lists(facts, min_size=1, max_size=3), min_size=1, max_size=3))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_the_upsert_is_the_merge(writer, engine, batches):
    """SQL's upserts over batches give the row the pure fold gives over all facts."""
    async with engine.begin() as connection:
        await connection.execute(tables.outcomes.delete())
    for batch in batches:
        await writer.write([lifecycle_rows(one) for one in batch])
    everything = [row for batch in batches for one in batch for row in lifecycle_rows(one).outcomes]
    assert await rows_in(engine, tables.outcomes) == fold(OUTCOMES, everything)


async def test_the_newest_registration_of_a_life_counts(writer, engine):
    draining = worker(at_ms=NOON_MS + 500, state=WorkerState.DRAINING)
    await writer.write([worker_rows(draining)])
    await writer.write([worker_rows(worker())])
    await writer.write([worker_rows(worker(epoch=NOON_MS + 9_000))])
    assert [row["state"] for row in await rows_in(engine, tables.workers)] == ["draining", "live"]
    assert len(await rows_in(engine, tables.contracts)) == 6


async def test_a_tombstone_retires_the_lives_known_until_then(writer, engine):
    await writer.write([worker_rows(worker()), worker_rows(worker("w2"))])
    await writer.write([retired_rows(Record("kvroute.workers.v1", 0, 9, NOON_MS + 5_000, b"w1", None))])
    assert {row["worker_id"]: row["state"] for row in await rows_in(engine, tables.workers)} == {
        "w1": "retired",
        "w2": "live",
    }


async def test_text_no_database_likes_is_stored(writer, engine):
    message = decision(detail="nul \x00 ünï ☃ 𝔘", parameters={"a\x00b": 1.0}, router="\x00")
    await writer.write([decided(message)])
    (row,) = await rows_in(engine, tables.decisions)
    assert row["detail"] == "nul \\u0000 ünï ☃ 𝔘"
    assert row["parameters"] == {"a\\u0000b": 1.0}


async def test_a_thousand_candidates_and_128k_tokens_of_addresses_fit(writer, engine):
    big = decision(
        candidates=[candidate(f"w{number}") for number in range(1000)],
        addresses=list(range(8192)),
        prompt_tokens=131_072,
    )
    await writer.write([decided(big)])
    assert len(await rows_in(engine, tables.candidates)) == 1000
    (row,) = await rows_in(engine, tables.decisions)
    assert len(row["addresses"]) == 16 * 8192


async def test_nothing_of_a_batch_stays_when_one_row_is_rejected(writer, engine):
    bad = decided(decision("r2").model_copy(update={"prompt_tokens": 2**63}))  # no message can say this
    with pytest.raises(Exception) as raised:
        await writer.write([decided(decision("r1")), bad])
    assert is_rows_fault(raised.value)
    assert not is_databases_fault(raised.value)
    assert await rows_in(engine, tables.decisions) == []


async def test_a_missing_schema_is_the_databases_fault(empty, now):
    from services.audit.writer import Writer

    with pytest.raises(DBAPIError) as raised:
        await Writer(empty, now, 30).write([lifecycle_rows(finished())])
    assert is_databases_fault(raised.value)
