"""From a record to an envelope later stages can trust."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.request import Request
from services.media.intake import Unreadable, created_at_of, deadline_of, envelope_of, read_request, request_id_of
from services.runtime.bus import Record

NOW = 1_767_225_600_000


def record(value: bytes | None = b"", *, offset: int = 7, timestamp_ms: int = NOW) -> Record:
    return Record("kvroute.requests.v1", 3, offset, timestamp_ms, b"k", value)


class TestId:
    def test_stays_the_same_under_redelivery(self) -> None:
        request = Request(body={})
        assert request_id_of(request, record()) == request_id_of(request, record()) == "4f54fb92ac887bb3"
        assert request_id_of(request, record(offset=8)) != request_id_of(request, record())

    def test_is_the_senders_if_it_has_one(self) -> None:
        assert request_id_of(Request(body={}, request_id="mine"), record()) == "mine"


class TestTime:
    @pytest.mark.parametrize(
        ("stated", "timestamp", "expected"),
        [
            (None, NOW - 50, NOW - 50),
            (NOW - 900, NOW, NOW - 900),
            (NOW + 30_000, NOW, NOW + 30_000),
            (NOW + 61_000, NOW - 5, NOW - 5),
            (0, NOW - 5, NOW - 5),
            (-1, -1, NOW),
            (None, -1, NOW),
            (None, NOW + 86_400_000, NOW),
        ],
    )
    def test_created_is_what_was_stated_or_the_records_but_never_ahead(
        self, stated: int | None, timestamp: int, expected: int
    ) -> None:
        request = Request(body={}, created_at_ms=stated)
        assert created_at_of(request, record(timestamp_ms=timestamp), NOW) == expected

    @pytest.mark.parametrize(
        ("stated", "expected"),
        [(None, NOW + 120_000), (NOW + 5, NOW + 5), (NOW + 10**9, NOW + 600_000), (NOW - 5, NOW - 5)],
    )
    def test_deadline(self, stated: int | None, expected: int) -> None:
        assert deadline_of(Request(body={}, deadline_ms=stated), NOW, 120) == expected


class TestEnvelope:
    def of(self, body: dict[str, object], **fields: object) -> object:
        request = Request(body=body, **fields)  # type: ignore[arg-type]
        return envelope_of(request, record(), body, now_ms=NOW, deadline_seconds=120)

    def test_carries_what_was_asked(self) -> None:
        fields = {
            "request_id": "r", "tenant": "t", "cache_salt": "s", "lora": "l", "priority": 3, "session_id": "x",
            "reply_to": "kvroute.responses.me", "route_only": True, "book": True,
        }  # fmt: skip
        envelope = self.of({"model": "m", "stream": True}, **fields)
        for name, value in fields.items():
            assert getattr(envelope, name) == value
        assert (envelope.model, envelope.stream) == ("m", True)  # type: ignore[attr-defined]

    def test_a_salt_of_the_body_counts_too(self) -> None:
        assert self.of({"model": "m", "cache_salt": "s"}).cache_salt == "s"  # type: ignore[attr-defined]

    @given(st.dictionaries(st.sampled_from(["model", "stream", "cache_salt"]), st.none() | st.integers() | st.text()))
    def test_any_body_has_an_envelope_so_that_it_can_be_refused(self, body: dict[str, object]) -> None:
        assert self.of(body) is not None


@given(st.binary(max_size=300) | st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["body", "request_id", "reply_to", "tenant", "body_claim", "x"]), inner
    ),
    max_leaves=12,
).map(lambda value: orjson.dumps(value)))  # fmt: skip
def test_any_value_is_a_request_or_unreadable(value: bytes) -> None:
    read: Request | Unreadable
    try:
        read = read_request(record(value))
    except Unreadable as error:
        read = error
    if isinstance(read, Unreadable):
        assert read.bad.code
        assert read.waiting is None or read.waiting.reply_to.startswith("kvroute.responses.")
