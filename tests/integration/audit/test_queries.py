"""What people ask, on both databases: the views, the four lists, and explain."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text

from schemas.decision import Mode, Outcome
from schemas.lifecycle import LifecycleEvent, Usage
from services.audit import queries
from services.audit.explain import UnknownRequest, explain
from services.audit.moments import moment
from services.audit.rows import decision_rows, lifecycle_rows
from services.kv.reason import Reason
from tests.fakes.audit_records import NOON_MS, candidate, decision, fact, finished, image, record_of

SINCE = moment(NOON_MS - 3_600_000)


def decided(*args, **known):
    message = decision(*args, **known)
    return decision_rows(message, record_of(message))


@pytest.fixture
async def connection(engine, writer):
    """Seven requests: a hit, one with less than predicted, one on w2, a fallback whose prompt the engine counted
    otherwise, a busy one, a refused one; and one that was only asked about."""
    await writer.write(
        [
            lifecycle_rows(fact(LifecycleEvent.ACCEPTED, "hit", attempt=0, after_ms=1, model="qwen3-vl", stream=True)),
            decided("hit", media=[image(identity=0xA)]),
            lifecycle_rows(fact(LifecycleEvent.FIRST_TOKEN, "hit", after_ms=100)),
            lifecycle_rows(fact(LifecycleEvent.FIRST_TOKEN, "less", after_ms=890)),
            decided("asked", route_only=True, media=[image(identity=0xA)], worker_id="w3"),
            lifecycle_rows(finished("hit", cached=48)),
            decided("less", media=[image(identity=0xA), image(identity=0xB)]),
            lifecycle_rows(finished("less", cached=16)),
            decided("other", worker_id="w2", candidates=[candidate("w2", cost=1.0)]),
            lifecycle_rows(fact(LifecycleEvent.FAILED, "other", after_ms=50, worker_id="w2", code="engine_gone")),
            decided("fallback", mode=Mode.TEXT_PREFIX, reason=Reason.FETCH_FAILED, exact_tokens=40, model="llava"),
            decided("busy", outcome=Outcome.ALL_BUSY, worker_id=None, epoch=None, candidates=[],
                    excluded=["w1/0", "w2/0"]),
            lifecycle_rows(
                fact(LifecycleEvent.REFUSED, "refused", attempt=0, after_ms=4, status=400, code="bad_image")
            ),
        ]
    )
    async with engine.connect() as connection:
        yield connection


async def view(connection, sql):
    return [dict(row) for row in (await connection.execute(text(sql))).mappings()]


async def test_recent_says_what_was_predicted_and_realised(connection):
    rows = {row.request_id: row for row in await queries.recent(connection, SINCE)}
    assert set(rows) == {"hit", "less", "other", "fallback", "busy", "asked", "refused"}
    assert (rows["hit"].predicted_tokens, rows["hit"].cached_tokens, rows["hit"].status) == (48, 48, "finished")
    assert rows["hit"].created_at == moment(NOON_MS)
    assert rows["busy"].worker_id is None
    assert (rows["hit"].ttft_ms, rows["less"].ttft_ms) == (100, None), "an answer that comes at once has no first token"
    assert rows["hit"].deadline_at == moment(NOON_MS + 120_000)


async def test_recent_tells_asking_and_refusing_apart_from_running(connection):
    rows = {row.request_id: row for row in await queries.recent(connection, SINCE)}
    assert (rows["asked"].status, rows["asked"].route_only, rows["hit"].route_only) == ("asked only", True, False)
    assert (rows["refused"].status, rows["refused"].attempt, rows["refused"].prompt_tokens) == ("refused", 0, None)
    assert rows["refused"].why == "ended before any decision: refused by media (bad_image)"
    assert rows["refused"].route_only is False
    assert "refused" not in {row.request_id for row in await queries.recent(connection, SINCE, worker_id="w1")}


async def test_a_request_that_was_decided_is_listed_once(connection, writer):
    """A stage may state an end of the request itself, too."""
    await writer.write([lifecycle_rows(fact(LifecycleEvent.CANCELLED, "hit", attempt=0, after_ms=5))])
    assert [row.attempt for row in await queries.recent(connection, SINCE) if row.request_id == "hit"] == [1]


async def test_rates_are_of_what_the_engine_counted(connection, writer):
    """Where a view is not exact, kvroute guesses how long the prompt is."""
    usage = Usage(prompt_tokens=500, completion_tokens=1, cached_tokens=100)
    await writer.write([lifecycle_rows(finished("fallback", usage=usage))])
    models = {row.model: row for row in await queries.by_model(connection, SINCE)}
    assert (models["llava"].prompt_tokens, models["llava"].hit_rate) == (500, pytest.approx(0.2))
    (worker,) = [row for row in await queries.by_worker(connection, SINCE) if row.model == "llava"]
    assert (worker.prompt_tokens, worker.hit_rate) == (500, pytest.approx(0.2))
    assert (await queries.fallbacks(connection, SINCE))[0].prompt_tokens == 500
    for name in ("v_hit_rate_hourly", "v_worker_share"):
        (row,) = await view(connection, f"SELECT * FROM {name} WHERE model = 'llava'")
        assert (row["prompt_tokens"], float(row["hit_rate"])) == (500, pytest.approx(0.2))
    (row,) = await view(connection, "SELECT * FROM v_decision_explained WHERE request_id = 'fallback'")
    assert (row["prompt_tokens"], row["engine_prompt_tokens"]) == (130, 500)
    assert (await view(connection, "SELECT prompt_tokens FROM v_fallbacks"))[0]["prompt_tokens"] == 500


async def test_engines_that_report_no_cached_tokens_do_not_lower_the_rate(connection, writer):
    usage = Usage(prompt_tokens=130, completion_tokens=1, cached_tokens=None)
    await writer.write([decided("silent"), lifecycle_rows(finished("silent", usage=usage))])
    shares = {(row.model, row.worker_id): row for row in await queries.by_worker(connection, SINCE)}
    assert shares["qwen3-vl", "w1"].hit_rate == pytest.approx(64 / 260)
    (hour,) = await view(connection, "SELECT * FROM v_hit_rate_hourly")
    assert (hour["finished"], float(hour["hit_rate"])) == (3, pytest.approx(64 / 260))


async def test_asking_is_no_work_of_a_worker(connection):
    assert "w3" not in {row.worker_id for row in await queries.by_worker(connection, SINCE)}
    assert "w3" not in {row["worker_id"] for row in await view(connection, "SELECT worker_id FROM v_worker_share")}
    (row,) = await view(connection, "SELECT * FROM v_decision_explained WHERE request_id = 'asked'")
    assert (bool(row["route_only"]), row["status"]) == (True, "asked only")


async def test_recent_can_be_narrowed(connection):
    assert len(await queries.recent(connection, SINCE, limit=2)) == 2
    assert {row.request_id for row in await queries.recent(connection, SINCE, model="llava")} == {"fallback"}
    assert {row.request_id for row in await queries.recent(connection, SINCE, worker_id="w2")} == {"other"}
    assert await queries.recent(connection, moment(NOON_MS + 1)) == []


async def test_by_worker_gives_shares_of_each_model(connection):
    rows = {(row.model, row.worker_id): row for row in await queries.by_worker(connection, SINCE)}
    assert rows["qwen3-vl", "w1"].attempts == 2
    assert rows["qwen3-vl", "w1"].share == pytest.approx(2 / 3)
    assert rows["qwen3-vl", "w1"].hit_rate == pytest.approx((48 + 16) / 260)
    assert rows["qwen3-vl", "w2"].failed == 1
    assert rows["qwen3-vl", "w2"].hit_rate is None


async def test_by_model_counts_modes_and_outcomes(connection):
    qwen, llava = await queries.by_model(connection, SINCE)
    assert (qwen.model, qwen.attempts, qwen.routed, qwen.not_routed, qwen.exact) == ("qwen3-vl", 4, 3, 1, 4)
    assert (llava.text_prefix, llava.finished, llava.hit_rate) == (1, 0, None)


async def test_fallbacks_name_the_reason(connection):
    (row,) = await queries.fallbacks(connection, SINCE)
    assert (row.model, row.reason, row.attempts, row.exact_tokens) == ("llava", "fetch_failed", 1, 40)
    assert row.example_request_id == "fallback"


async def test_explain_puts_everything_together(connection):
    (found,) = await explain(connection, "hit")
    assert found.request["stream"] is True
    assert [medium["identity"] for medium in found.media] == ["000000000000000a"]
    (attempt,) = found.attempts
    assert [row["worker_id"] for row in attempt.candidates] == ["w1", "w2"]
    assert (attempt.realised_blocks, attempt.token_error) == (3, 0)


def with_image(request_id, prefix, offset=20, created_at_ms=NOON_MS, **known):
    """A request with picture 0xF behind a block of ``prefix``."""
    medium = image(identity=0xF, offset=offset)
    rows = [candidate("w1"), candidate("w2", 4)]
    known |= {"addresses": [prefix, prefix + 1], "created_at_ms": created_at_ms, "candidates": rows}
    return decided(request_id, media=[medium], **known)


async def test_explain_tells_of_media_that_came_behind_another_prefix(connection, writer):
    later = NOON_MS + 1000
    await writer.write(
        [
            with_image("system-a", 100),
            with_image("moved", 200, offset=36, created_at_ms=NOON_MS + 1),
            with_image("asked-only", 300, created_at_ms=NOON_MS + 2, route_only=True),
            with_image("to-w2", 400, created_at_ms=NOON_MS + 3, worker_id="w2"),
            with_image("here", 200, created_at_ms=later),
        ]
    )
    (found,) = await explain(connection, "here", elsewhere=True)
    assert [(one.item, one.kind, one.worker_id, one.request_id) for one in found.elsewhere] == [
        (0, "image", "w1", "moved")
    ], "the newest on w1; w2 holds the picture's blocks"
    await writer.write([with_image("again", 200, created_at_ms=later + 1000)])
    (found,) = await explain(connection, "again", elsewhere=True)
    assert found.elsewhere == [], "behind the same prefix: it was evicted, or is not stored yet"
    (found,) = await explain(connection, "system-a", elsewhere=True)
    assert found.elsewhere == [], "nothing came before it"


async def test_explain_knows_requests_that_never_got_a_decision(connection):
    (found,) = await explain(connection, "refused")
    assert found.attempts[0].attempt == 0
    assert found.attempts[0].decision is None
    assert found.attempts[0].outcome["code"] == "bad_image"


async def test_explain_of_an_unknown_request_says_how_to_go_on(connection):
    with pytest.raises(UnknownRequest, match="kvroute audit recent"):
        await explain(connection, "nobody")
    with pytest.raises(UnknownRequest, match="of tenant 'x'"):
        await explain(connection, "hit", tenant="x")


async def test_view_decision_explained_tells_why(connection):
    rows = {row["request_id"]: row for row in await view(connection, "SELECT * FROM v_decision_explained")}
    assert rows["hit"]["why"] == "w1 holds 3 of 8 blocks, cost 5.13, next w2 at 8.13"
    assert rows["other"]["why"].endswith("no other candidate")
    assert rows["fallback"]["why"].endswith("exact up to token 40 (fetch_failed)")
    assert rows["busy"]["why"] == "all_busy: no slot could take it; tried before: w1/0, w2/0"
    assert (rows["less"]["realised_blocks"], rows["less"]["token_error"]) == (1, -32)
    assert (rows["hit"]["ttft_ms"], rows["less"]["ttft_ms"]) == (100, None)


async def test_view_decision_explained_tells_of_ties(connection, writer):
    await writer.write([decided("tie", ties=2, margin=0.0)])
    (row,) = await view(connection, "SELECT why FROM v_decision_explained WHERE request_id = 'tie'")
    assert row["why"] == "w1 holds 3 of 8 blocks, cost 5.13, drawn among 2 that cost the same"


async def test_view_hit_rate_hourly(connection):
    (row,) = await view(connection, "SELECT * FROM v_hit_rate_hourly")
    assert str(row["hour"]).startswith("2026-01-01 12:00:00")
    assert (row["finished"], row["prompt_tokens"], row["cached_tokens"]) == (2, 260, 64)
    assert float(row["hit_rate"]) == pytest.approx(64 / 260)


async def test_view_worker_share(connection):
    rows = await view(
        connection, "SELECT worker_id, share FROM v_worker_share WHERE model = 'qwen3-vl' ORDER BY worker_id"
    )
    assert [(row["worker_id"], float(row["share"])) for row in rows] == [
        ("w1", pytest.approx(2 / 3)),
        ("w2", pytest.approx(1 / 3)),
    ]


async def test_view_media_reuse(connection):
    rows = await view(connection, "SELECT identity, requests, workers FROM v_media_reuse ORDER BY identity")
    assert [(row["identity"][-1], row["requests"], row["workers"]) for row in rows] == [("a", 3, 1), ("b", 1, 1)]


async def test_view_mispredicted(connection):
    (row,) = await view(connection, "SELECT * FROM v_mispredicted")
    assert (row["request_id"], row["predicted"], row["token_error"], row["prefix_in_flight"]) == (
        "less",
        "over",
        -32,
        0,
    )


async def test_view_fallbacks(connection):
    (row,) = await view(connection, "SELECT * FROM v_fallbacks")
    assert (row["model"], row["mode"], row["reason"], row["attempts"]) == ("llava", "text_prefix", "fetch_failed", 1)


async def test_two_requests_of_one_id_are_explained_newest_first(connection, writer):
    later = NOON_MS + 7_200_000
    await writer.write([decided("hit", created_at_ms=later)])
    assert [found.request["created_at"] for found in await explain(connection, "hit")] == [
        moment(later),
        moment(later) - timedelta(hours=2),
    ]
