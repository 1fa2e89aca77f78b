"""Records as rows: every column named, 64-bit values as hex, nothing a database could choke on."""

from __future__ import annotations

import pytest

from schemas.decision import Outcome, Position, RestOfCandidates
from schemas.lifecycle import LifecycleEvent
from services.audit import tables
from services.audit.moments import milliseconds, moment
from services.audit.rows import (
    dead_letter_rows,
    decision_rows,
    joined_hex,
    lifecycle_rows,
    retired_rows,
    worker_rows,
)
from services.kv.reason import Reason
from services.runtime.bus import Record
from services.runtime.errors import BadRecord
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


def rows_of(message, offset=0):
    return decision_rows(message, record_of(message, offset=offset))


class TestDecision:
    def test_every_column_of_the_tables_is_named(self):
        rows = rows_of(decision(media=[image()]))
        assert rows.decisions[0].keys() == set(tables.decisions.c.keys())
        assert rows.candidates[0].keys() == set(tables.candidates.c.keys())
        assert rows.media[0].keys() == set(tables.media.c.keys())
        assert rows.requests[0].keys() == set(tables.requests.c.keys())

    def test_64_bit_values_are_16_hexadecimal_digits(self):
        rows = rows_of(decision(media=[image(identity=0xAB)]))
        assert rows.decisions[0]["seed"] == "000000000000feed"
        assert rows.decisions[0]["addresses"] == "1122334455667788" + "0000000000000001"
        assert rows.media[0]["identity"] == "00000000000000ab"

    def test_the_first_candidate_is_the_chosen_one(self):
        assert [row["chosen"] for row in rows_of(decision()).candidates] == [True, False]

    def test_the_ranks_of_one_worker_are_told_apart(self):
        both = [candidate("w1", dp_rank=1), candidate("w1", dp_rank=0)]
        assert [row["chosen"] for row in rows_of(decision(dp_rank=1, candidates=both)).candidates] == [True, False]

    def test_nobody_is_chosen_when_all_are_busy(self):
        busy = decision(outcome=Outcome.ALL_BUSY, worker_id=None, epoch=None)
        assert [row["chosen"] for row in rows_of(busy).candidates] == [False, False]

    def test_candidates_without_a_row_are_counted(self):
        row = rows_of(decision(rest=RestOfCandidates(count=70, min_cost=9.0, max_cost=30.0))).decisions[0]
        assert (row["candidate_count"], row["rest_min_cost"], row["rest_max_cost"]) == (72, 9.0, 30.0)

    def test_it_says_where_its_record_and_its_inputs_stand(self):
        message = decision(expanded=Position(topic="kvroute.expanded.v1", partition=3, offset=17))
        row = rows_of(message, offset=41).decisions[0]
        assert (row["record_offset"], row["expanded_partition"], row["expanded_offset"]) == (41, 3, 17)
        assert row["projection"] == [["kvroute.kv-events.v1", 0, 99]]

    def test_nul_and_urls_in_text_are_made_safe(self):
        row = rows_of(
            decision(detail="a\x00b https://u:p@h.example/x?sig=secret", reason=Reason.FETCH_FAILED)
        ).decisions[0]
        assert row["detail"].startswith("a\\u0000b https://")
        assert "secret" not in row["detail"]
        assert "u:p" not in row["detail"]

    def test_a_media_path_never_carries_a_query(self):
        assert rows_of(decision(media=[image(path="/a.png?sig=1#x")])).media[0]["path"] == "/a.png"

    @pytest.mark.parametrize("field", ["created_at_ms", "now_ms", "deadline_ms"])
    def test_a_time_outside_the_calendar_is_a_bad_record(self, field):
        with pytest.raises(BadRecord, match="expected milliseconds since 1970"):
            rows_of(decision(**{field: 10**18}))


class TestLifecycle:
    def test_acceptance_speaks_of_the_request_alone(self):
        rows = lifecycle_rows(fact(LifecycleEvent.ACCEPTED, attempt=0, after_ms=3, model="qwen3-vl", stream=True))
        assert rows.outcomes == []
        assert rows.requests[0]["accepted_at"] == moment(NOON_MS + 3)
        assert rows.requests[0]["stream"] is True

    def test_a_refusal_before_any_decision_is_an_outcome_of_attempt_0(self):
        refused = fact(LifecycleEvent.REFUSED, attempt=0, status=400, code="bad_image", detail="a truncated JPEG")
        rows = lifecycle_rows(refused)
        assert rows.outcomes[0] | {"status": "refused", "attempt": 0, "http_status": 400} == rows.outcomes[0]
        assert rows.requests[0]["accepted_at"] is None

    def test_the_end_of_an_attempt_carries_what_the_engine_reported(self):
        row = lifecycle_rows(finished(after_ms=900, cached=48)).outcomes[0]
        assert row.keys() == set(tables.outcomes.c.keys())
        assert (row["status"], row["total_ms"], row["cached_tokens"], row["worker_id"]) == ("finished", 900, 48, "w1")

    def test_the_first_token_is_timed_from_the_making_of_the_request(self):
        row = lifecycle_rows(fact(LifecycleEvent.FIRST_TOKEN, after_ms=120)).outcomes[0]
        assert (row["ttft_ms"], row["status"], row["ended_at"]) == (120, None, None)


class TestWorker:
    def test_one_row_a_life_and_one_a_modality(self):
        rows = worker_rows(worker())
        assert rows.workers[0].keys() == set(tables.workers.c.keys())
        assert {row["modality"]: row["proven"] for row in rows.contracts} == {
            "text": True,
            "image": True,
            "video": False,
        }
        assert rows.contracts[0].keys() == set(tables.contracts.c.keys())

    def test_without_a_contract_there_are_no_contract_rows(self):
        assert worker_rows(worker(contract=None)).contracts == []

    def test_a_tombstone_retires_the_worker(self):
        tombstone = Record("kvroute.workers.v1", 0, 5, NOON_MS, b"w1", None)
        assert retired_rows(tombstone).retired == [("w1", moment(NOON_MS))]


class TestDeadLetter:
    def test_it_names_the_original_record_and_keeps_no_value(self):
        row = dead_letter_rows(dead_letter(17)).dead_letters[0]
        assert row.keys() == set(tables.dead_letters.c.keys())
        assert (row["record_topic"], row["record_partition"], row["record_offset"]) == ("kvroute.requests.v1", 4, 17)
        assert row["size_bytes"] == len(b"<html>")

    @pytest.mark.parametrize(
        "headers",
        [
            (),
            (("dlq-offset", b"x"), ("dlq-timestamp-ms", b"9" * 30), ("dlq-code", b"\xff")),
            (("dlq-partition", b"9" * 10_000),),
        ],
    )
    def test_whatever_its_headers_are_it_makes_a_row(self, headers):
        letter = Record("kvroute.dead-letters.v1", 0, 1, NOON_MS, b"\xff\x00", None, headers)
        row = dead_letter_rows(letter).dead_letters[0]
        assert row["record_offset"] == 0
        assert row["record_key"] == "\\xff\\u0000"


def test_joined_hex_is_big_endian_digits():
    assert joined_hex([]) == ""
    assert joined_hex([0xEA06FC71A5EE6E88, 2**64 - 1]) == "ea06fc71a5ee6e88ffffffffffffffff"


def test_moments_and_milliseconds_are_inverse():
    assert milliseconds(moment(NOON_MS + 123)) == NOON_MS + 123
