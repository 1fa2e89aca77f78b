"""db, audit and explain, with a real SQLite store."""

from __future__ import annotations

import pytest

from services.audit.explain import Attempt
from services.cli import exits
from services.cli.explained import candidates_table, cost_bar, why
from tests.fakes.cli import shape


def test_db_upgrade_makes_the_schema_and_is_repeatable(kvroute, tmp_path, monkeypatch):
    monkeypatch.setenv("KVROUTE_DATABASE_URL", f"sqlite:///{tmp_path}/new.sqlite3")
    assert kvroute("db", "upgrade").value["after"] == "0003"
    assert kvroute("db", "upgrade").value["before"] == "0003"
    assert "already" in kvroute("db", "upgrade", "--table").out


def test_db_status_says_what_to_do(kvroute, tmp_path, monkeypatch):
    monkeypatch.setenv("KVROUTE_DATABASE_URL", f"sqlite:///{tmp_path}/new.sqlite3")
    (tmp_path / "new.sqlite3").touch()
    ran = kvroute("db", "status", "--table")
    assert ran.code == exits.FAILED
    assert "kvroute db upgrade" in " ".join(ran.out.split())  # a long path wraps the line
    kvroute("db", "upgrade")
    assert kvroute("db", "status").value["ready"] is True


def test_a_database_that_is_away_is_said_without_its_password(kvroute, monkeypatch):
    monkeypatch.setenv("KVROUTE_DATABASE_URL", "postgresql://u:hidden@127.0.0.1:1/d")
    ran = kvroute("audit", "recent")
    assert ran.code == exits.AWAY
    assert "hidden" not in ran.err
    assert "KVROUTE_DATABASE_URL" in ran.err


def test_reading_does_not_make_a_store(kvroute, tmp_path):
    ran = kvroute("explain", "hit")
    assert ran.code == exits.AWAY
    assert "kvroute up" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_store_without_schema_asks_for_the_upgrade(kvroute, tmp_path, monkeypatch):
    (tmp_path / "new.sqlite3").touch()
    monkeypatch.setenv("KVROUTE_DATABASE_URL", f"sqlite:///{tmp_path}/new.sqlite3")
    ran = kvroute("audit", "recent")
    assert ran.code == exits.AWAY
    assert "kvroute db upgrade" in ran.err


@pytest.mark.usefixtures("store")
class TestAudit:
    def test_recent(self, kvroute):
        rows = kvroute("audit", "recent").value
        assert {row["request_id"] for row in rows} == {"hit", "short", "busy", "asked", "refused", "moved"}
        assert {"worker_id", "overlap_confirmed", "total_blocks", "predicted_tokens", "cached_tokens"} <= shape(rows)
        assert rows[0]["created_at"] == "2026-01-01T12:00:01Z"

    def test_recent_as_a_table(self, kvroute):
        out = kvroute("audit", "recent", "--table").out
        assert "3/8" in out
        assert "all_busy" in out
        assert "asked only" in out
        assert "undecided" in out

    def test_what_was_asked_and_what_was_refused_is_no_running_request(self, kvroute):
        rows = {row["request_id"]: row for row in kvroute("audit", "recent").value}
        assert (rows["asked"]["status"], rows["asked"]["route_only"]) == ("asked only", True)
        assert (rows["refused"]["status"], rows["refused"]["attempt"]) == ("refused", 0)
        assert rows["refused"]["why"] == "ended before any decision: refused by media (bad_image)"
        assert rows["refused"]["deadline_at"] is None

    def test_what_nobody_stated_the_end_of_runs_until_its_deadline(self, kvroute):
        assert "running" in kvroute("audit", "recent", "--table").out
        kvroute.now_ms += 200_000
        out = kvroute("audit", "recent", "--table").out
        assert "running" not in out
        assert "end not known" in out

    def test_times_to_first_tokens_are_those_of_streams(self, kvroute):
        rows = {row["request_id"]: row for row in kvroute("audit", "recent").value}
        assert (rows["hit"]["ttft_ms"], rows["short"]["ttft_ms"]) == (80, None)
        assert kvroute("audit", "workers").value[0]["mean_ttft_ms"] == 80

    def test_rates_are_of_what_engines_counted(self, kvroute):
        (row,) = kvroute("audit", "workers").value
        assert row["prompt_tokens"] == 130 + 352 + 130, "one of them has no end yet"
        assert row["hit_rate"] == pytest.approx((48 + 32) / (130 + 352))

    def test_recent_can_be_narrowed(self, kvroute):
        assert len(kvroute("audit", "recent", "--limit", "1").value) == 1
        assert kvroute("audit", "recent", "--worker", "w9").value == []
        assert kvroute("audit", "recent", "--model", "other").value == []

    def test_since_bounds_every_list(self, kvroute):
        kvroute.now_ms += 2 * 3_600_000
        for command in ("recent", "workers", "models", "fallbacks"):
            assert kvroute("audit", command, "--since", "1h").value == []

    def test_a_wrong_span_is_wrong_usage(self, kvroute):
        ran = kvroute("audit", "recent", "--since", "yesterday")
        assert ran.code == exits.USAGE
        assert "expected a span" in ran.err

    def test_workers(self, kvroute):
        (row,) = kvroute("audit", "workers").value
        assert (row["worker_id"], row["attempts"], row["share"]) == ("w1", 3, 1.0)
        assert "100.0 %" in kvroute("audit", "workers", "--table").out

    def test_models(self, kvroute):
        (row,) = kvroute("audit", "models").value
        assert (row["model"], row["attempts"], row["not_routed"]) == ("qwen3-vl", 4, 1), "asking is no attempt"
        assert "qwen3-vl" in kvroute("audit", "models", "--table").out

    def test_fallbacks(self, kvroute):
        (row,) = kvroute("audit", "fallbacks").value
        assert (row["reason"], row["example_request_id"]) == ("fetch_failed", "short")
        assert "fetch_failed" in kvroute("audit", "fallbacks", "--table").out


@pytest.mark.usefixtures("store")
class TestExplain:
    def test_as_json(self, kvroute):
        found = kvroute("explain", "hit").value
        assert found["request"]["request_id"] == "hit"
        assert found["media"][0]["identity"] == "00000000000000ab"
        (attempt,) = found["attempts"]
        assert (attempt["realised_blocks"], attempt["token_error"]) == (3, 0)
        assert [candidate["worker_id"] for candidate in attempt["candidates"]] == ["w1", "w2"]
        assert attempt["why"] == "w1 holds 3 of 8 blocks and costs 5.12 blocks; the next, w2, costs 8.12"

    def test_as_a_drawing(self, kvroute):
        out = kvroute("explain", "hit", "--table").out
        assert "attempt 1: w1 holds 3 of 8 blocks" in out
        assert "predicted 48 tokens (3 blocks), realised 48 tokens (3 blocks): as predicted" in out
        assert "█" * 24 in out  # w2 costs most: a full bar
        assert "→" in out
        assert "00000000000000ab" in out
        assert "example.com/a.png" in out
        assert "first token after 80 ms" in out

    def test_encoder_outputs_stand_apart_from_the_overlap(self, kvroute):
        out = kvroute("explain", "hit", "--table").out
        assert "to see" not in out, "a prompt without media to encode"
        row = {"vision_tokens": 300, "encoder_tokens": 300, "chosen": True, "worker_id": "w1", "cost": 5.125}
        row |= dict.fromkeys(("overlap_device", "overlap_host", "overlap_disk", "overlap_predicted", "dp_rank"), 0)
        row |= dict.fromkeys(("active_prefill_tokens", "active_decode_blocks", "active_requests"), 0)
        row |= {"uncertain": False} | candidate(5.125)
        decision = {
            "outcome": "routed", "worker_id": "w1", "overlap_confirmed": 0, "overlap_predicted": 0, "total_blocks": 8,
            "ties": 1, "candidate_count": 1, "route_only": False,
        }  # fmt: skip
        attempt = Attempt(1, decision, [row], None)
        assert why(attempt) == (
            "w1 holds 0 of 8 blocks, the encoder output of 300 media tokens and costs 5.12 blocks; "
            "there was no other candidate"
        )
        headings = [column.header for column in candidates_table(attempt, 200).columns]
        assert headings[2:6] == ["overlap", "+ recent", "to see\ntokens", "to see:\nencoded"]

    def test_where_exactness_ends_and_what_was_mispredicted(self, kvroute):
        out = kvroute("explain", "short", "--table").out
        assert "exact_prefix" not in out
        assert "fetch_failed (HTTP 404)" in out
        assert "16 fewer than predicted" in out

    def test_a_request_nobody_could_take(self, kvroute):
        out = kvroute("explain", "busy", "--table").out
        assert "all_busy: no slot could take it; tried before: w1/0, w2/0" in out

    def test_a_request_that_was_refused(self, kvroute):
        out = kvroute("explain", "refused", "--table").out
        assert "ended before any decision: refused by media (bad_image)" in out
        assert "a truncated JPEG" in out

    def test_an_unknown_request(self, kvroute):
        ran = kvroute("explain", "nobody")
        assert ran.code == exits.FAILED
        assert "kvroute audit recent" in ran.err
        assert ran.err.rstrip().endswith("or its record was refused: `kvroute dlq list`")

    def test_a_picture_that_came_before_behind_another_prefix(self, kvroute):
        out = kvroute("explain", "moved", "--table").out
        assert "image 0 was sent to w1 before (request hit), but behind another prefix" in out
        (seen,) = kvroute("explain", "moved").value["seen_behind_another_prefix"]
        assert (seen["item"], seen["worker_id"], seen["request_id"]) == (0, "w1", "hit")
        assert kvroute("explain", "hit").value["seen_behind_another_prefix"] == []

    def test_a_request_that_was_only_asked_about(self, kvroute):
        out = kvroute("explain", "asked", "--table").out
        assert "route only, nothing was run: w1 holds 3 of 8 blocks" in out
        assert "predicted 48 tokens (3 blocks), nothing was run" in out

    def test_tokens_that_were_not_laid_out_are_estimated(self, kvroute):
        out = kvroute("explain", "short", "--table").out
        assert "40 of about 130 tokens are exact (estimated: the engine counted 352)" in out

    def test_only_parameters_that_are_not_at_their_default_are_told(self, kvroute):
        assert "kv 1 (request_weight 2)" in kvroute("explain", "hit", "--table").out
        assert "kv 1 (parameters at their defaults)" in kvroute("explain", "short", "--table").out

    def test_an_answer_that_is_not_streamed_has_no_first_token(self, kvroute):
        out = kvroute("explain", "short", "--table").out
        assert "end after 900 ms" in out
        assert "first token after" not in out
        (attempt,) = kvroute("explain", "short").value["attempts"]
        assert (attempt["outcome"]["ttft_ms"], attempt["outcome"]["total_ms"]) == (None, 900)


def candidate(prefill=0.0, decode=0.0, request=0.0):
    return {"prefill_cost": prefill, "decode_cost": decode, "request_cost": request}


@pytest.mark.parametrize(
    ("terms", "bar"),
    [
        (candidate(10), "██████████"),
        (candidate(5, 5), "█████▒▒▒▒▒"),
        (candidate(1.4, 1.4, 1.4), "█▒▒░"),
        (candidate(), ""),
        (candidate(-3, 5), "▒▒▒▒▒"),
        (candidate(99), "██████████"),
    ],
)
def test_a_bar_is_the_cost_by_its_terms(terms, bar):
    assert cost_bar(terms, longest=10, width=10).plain == bar


def test_no_cost_at_all_draws_nothing():
    assert cost_bar(candidate(), longest=0).plain == ""


def attempt(**decision):
    values = {"outcome": "routed", "worker_id": "w1", "overlap_confirmed": 2, "overlap_predicted": 2, "total_blocks": 8,
              "ties": 1, "candidate_count": 2, "route_only": False}  # fmt: skip
    rows = [
        {"chosen": worker == "w1", "worker_id": worker, "cost": 1.0, "encoder_tokens": 0} for worker in ("w1", "w2")
    ]
    return Attempt(1, values | decision, rows, None)


def test_why_tells_of_ties_and_recent_decisions():
    assert why(attempt(ties=2)).endswith("drawn among 2 that cost the same")
    assert "(5 with recent decisions counted)" in why(attempt(overlap_predicted=5))
