"""Dead letters: listed, shown without secrets, sent again a bounded number of times."""

from __future__ import annotations

import orjson
import pytest

from services.cli import exits
from services.cli.letter import BadLetter, LetterId, redrive_of, shown_headers, shown_value
from services.runtime.bus import Record
from services.runtime.dead_letters import headers_of
from services.runtime.topics import DEAD_LETTERS
from tests.fakes.audit_records import NOON_MS


def letter(offset=0, partition=0, value=b'{"body": 1}', stage="media", code="invalid_message", **headers):
    values = {
        "schema": "request.v1", "dlq-topic": "kvroute.requests.v1", "dlq-partition": "4", "dlq-offset": "17",
        "dlq-timestamp-ms": str(NOON_MS), "dlq-stage": stage, "dlq-code": code, "dlq-message": "expected JSON",
    } | {name.replace("_", "-"): text for name, text in headers.items()}  # fmt: skip
    carried = tuple((name, text.encode()) for name, text in values.items())
    return Record(DEAD_LETTERS.name, partition, offset, NOON_MS + offset, b"/r1", value, carried)


class TestList:
    def test_newest_first_with_where_the_record_stood(self, kvroute):
        for offset in range(3):
            kvroute.broker.put(letter(offset))
        rows = kvroute("dlq", "list").value
        assert [row["id"] for row in rows] == ["0:2", "0:1", "0:0"]
        assert (rows[0]["topic"], rows[0]["partition"], rows[0]["offset"]) == ("kvroute.requests.v1", "4", "17")

    def test_filters_and_limit(self, kvroute):
        kvroute.broker.put(letter(0, stage="audit"))
        kvroute.broker.put(letter(1, code="fetch_failed"))
        kvroute.broker.put(letter(2))
        assert [row["id"] for row in kvroute("dlq", "list", "--stage", "audit").value] == ["0:0"]
        assert [row["id"] for row in kvroute("dlq", "list", "--code", "fetch_failed").value] == ["0:1"]
        assert kvroute("dlq", "list", "--topic", "kvroute.expanded.v1").value == []
        assert [row["id"] for row in kvroute("dlq", "list", "--limit", "1").value] == ["0:2"]

    def test_as_a_table(self, kvroute):
        kvroute.broker.put(letter(5, partition=2))
        out = kvroute("dlq", "list", "--table").out
        assert "2:5" in out
        assert "kvroute.requests.v1 4:17" in out

    def test_none(self, kvroute):
        assert kvroute("dlq", "list").value == []
        assert "no dead letters" in kvroute("dlq", "list", "--table").err

    def test_a_broker_that_is_away(self, kvroute):
        kvroute.broker.away = True
        ran = kvroute("dlq", "list")
        assert ran.code == exits.AWAY
        assert "no broker answers" in ran.err


class TestShow:
    SECRETS = {
        "api_key": "HIDE", "nested": [{"password": "HIDE", "url": "https://u:HIDE@h/p?sig=HIDE"}],
        "body": '{"messages": [{"image_url": "data:image/png;base64,HIDE"}], "authorization": "HIDE"}',
    }  # fmt: skip

    def test_headers_key_and_value_without_secrets(self, kvroute):
        kvroute.broker.put(letter(3, value=orjson.dumps(self.SECRETS), authorization="HIDE"))
        ran = kvroute("dlq", "show", "0:3")
        assert ran.code == exits.DONE
        assert "HIDE" not in ran.out
        assert ran.value["letter"]["key"] == "/r1"
        assert ran.value["headers"]["schema"] == "request.v1"
        assert ran.value["value"]["nested"][0]["url"].startswith("https://")

    def test_as_text(self, kvroute):
        kvroute.broker.put(letter(3, value=b"<html>\xff https://h/p?HIDE"))
        out = kvroute("dlq", "show", "0:3", "--table").out
        assert "<html>\\\\xff" in out
        assert "HIDE" not in out
        assert "header schema" in out

    def test_long_values_are_cut(self):
        assert shown_value(b"x" * 100, most=10).endswith("(100 bytes)")
        assert shown_value(None, most=10) is None

    def test_secret_headers_are_hidden(self):
        assert shown_headers(letter(x_api_key="HIDE"))["x-api-key"] == "(hidden)"

    def test_a_letter_that_is_gone(self, kvroute):
        ran = kvroute("dlq", "show", "0:99")
        assert ran.code == exits.FAILED
        assert "kvroute dlq list" in ran.err

    @pytest.mark.parametrize("text", ["", "1", "a:b", "1:2:3", "-1:2", "1:" + "9" * 30])
    def test_an_id_that_is_none(self, text):
        with pytest.raises(BadLetter, match="PARTITION:OFFSET"):
            LetterId.parse(text)


class TestRedrive:
    def test_same_bytes_key_and_headers_to_where_it_stood(self, kvroute):
        kvroute.broker.put(letter(3, value=b"\x00raw"))
        ran = kvroute("dlq", "redrive", "0:3")
        assert ran.code == exits.DONE
        (sent,) = kvroute.broker.sender.sent
        assert (sent.topic, sent.record.key, sent.record.value) == ("kvroute.requests.v1", b"/r1", b"\x00raw")
        assert sent.headers == {"schema": "request.v1", "dlq-redriven": "1"}
        assert ran.value[0]["result"] == "0:0"

    def test_it_counts_across_deaths(self):
        again = redrive_of(letter())
        record = Record("kvroute.requests.v1", 4, 18, NOON_MS, again.key, again.value, tuple(again.headers.items()))
        dead = headers_of(record, "media", "invalid_message", "still no JSON")
        second = redrive_of(Record(DEAD_LETTERS.name, 0, 9, NOON_MS, record.key, record.value, tuple(dead.items())))
        assert second.headers["dlq-redriven"] == b"2"

    def test_it_does_not_go_round_for_ever(self, kvroute):
        kvroute.broker.put(letter(3, dlq_redriven="3"))
        ran = kvroute("dlq", "redrive", "0:3")
        assert ran.code == exits.FAILED
        assert "--force" in ran.value[0]["error"]
        assert kvroute("dlq", "redrive", "0:3", "--force").code == exits.DONE
        assert len(kvroute.broker.sender.sent) == 1

    @pytest.mark.parametrize("topic", ["", "somebody.elses", "kvroute.dead-letters.v1", "__consumer_offsets"])
    def test_only_topics_of_kvroute(self, topic):
        with pytest.raises(BadLetter, match="expected a topic of kvroute"):
            redrive_of(letter(dlq_topic=topic))

    def test_a_letter_without_its_value(self):
        with pytest.raises(BadLetter, match="too large"):
            redrive_of(letter(dlq_truncated="1"))

    def test_all_that_fit_oldest_first_up_to_the_limit(self, kvroute):
        for offset in range(5):
            kvroute.broker.put(letter(offset, stage="media" if offset else "audit"))
        rows = kvroute("dlq", "redrive", "--all", "--stage", "media", "--limit", "3").value
        assert [row["id"] for row in rows] == ["0:2", "0:3", "0:4"]

    def test_dry_run_sends_nothing(self, kvroute):
        kvroute.broker.put(letter(3))
        assert kvroute("dlq", "redrive", "0:3", "--dry-run").value[0]["result"] == "would be sent"
        assert kvroute.broker.sender.sent == []

    @pytest.mark.parametrize("arguments", [(), ("0:1", "--all")])
    def test_name_them_or_say_all(self, kvroute, arguments):
        assert kvroute("dlq", "redrive", *arguments).code == exits.USAGE
