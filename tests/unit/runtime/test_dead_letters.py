"""A dead letter keeps the value raw and says in headers where it stood, who gave up and why. No secrets."""

from __future__ import annotations

from services.runtime.bus import Record
from services.runtime.dead_letters import LONGEST_MESSAGE, DeadLetters
from services.runtime.errors import BadRecord
from services.runtime.topics import DEAD_LETTERS
from tests.fakes import FakeSender

HEADERS = (("schema", b"x"), ("dlq-code", b"forged"))
RECORD = Record("kvroute.requests.v1", 3, 17, 1234, b"t/r1", b"\x00not json", HEADERS)


async def test_value_key_and_headers() -> None:
    sender = FakeSender()
    await DeadLetters(sender, "media").bury(RECORD, "not_json", "expected JSON")
    (sent,) = sender.of(DEAD_LETTERS.name)
    assert (sent.record.key, sent.record.value) == (b"t/r1", b"\x00not json")
    assert sent.headers == {
        "schema": "x",
        "dlq-topic": "kvroute.requests.v1",
        "dlq-partition": "3",
        "dlq-offset": "17",
        "dlq-timestamp-ms": "1234",
        "dlq-stage": "media",
        "dlq-code": "not_json",
        "dlq-message": "expected JSON",
    }


async def test_the_message_carries_no_url_query_and_no_inline_data() -> None:
    sender = FakeSender()
    message = "could not fetch https://u:p@h/a.png?sig=SECRET nor data:image/png;base64,AAAA, nor \ud800 " + "x" * 5000
    await DeadLetters(sender, "media").bury(RECORD, "fetch_failed", message)
    text = sender.sent[0].headers["dlq-message"]
    assert text.startswith("could not fetch https://…@h/a.png?… nor data:image/png,…")
    assert "SECRET" not in text
    assert len(text) <= LONGEST_MESSAGE


async def test_a_record_that_does_not_fit_leaves_at_least_its_position() -> None:
    sender = FakeSender()
    sender.fail_next(BadRecord("record_too_large", "too large"))
    await DeadLetters(sender, "media").bury(RECORD, "bad", "x")
    (sent,) = sender.of(DEAD_LETTERS.name)
    assert sent.record.value == b""
    assert sent.headers["dlq-truncated"] == "1"
    assert sent.headers["dlq-offset"] == "17"
    assert "schema" not in sent.headers
