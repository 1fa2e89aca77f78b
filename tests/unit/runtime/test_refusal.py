"""A refusal is a fact and, if somebody waits, an answer."""

from typing import Any

import pytest

from schemas.lifecycle import Lifecycle, LifecycleEvent
from schemas.request import Envelope
from schemas.work import Response
from services.media.intake import Waiting
from services.runtime.errors import BadRecord, Refused, Transient
from services.runtime.refusal import cancelled, deadline_exceeded, refuse
from services.runtime.topics import LIFECYCLE
from tests.fakes import Harness

REPLY_TO = "kvroute.responses.mine"


def envelope(**fields: Any) -> Envelope:
    given = {
        "request_id": "r", "tenant": "t", "model": "m", "reply_to": REPLY_TO, "deadline_ms": 9, "created_at_ms": 5,
        "stream": True, "session_id": "s", "timings_ms": {"media": 1.5},
    }  # fmt: skip
    return Envelope(**(given | fields))


async def test_states_the_fact_and_answers_once() -> None:
    harness = Harness()
    await refuse(harness, envelope(), Refused(404, "no such model", code="model_not_found"), stage="layout", attempt=2)
    [fact] = harness.sender.messages(LIFECYCLE.name, Lifecycle)
    assert (fact.event, fact.stage, fact.status, fact.code, fact.detail, fact.attempt) == (
        LifecycleEvent.REFUSED, "layout", 404, "model_not_found", "no such model", 2,
    )  # fmt: skip
    assert (fact.model, fact.stream, fact.session_id, fact.deadline_ms, fact.created_at_ms) == ("m", True, "s", 9, 5)
    assert fact.timings_ms == {"media": 1.5}
    [answer] = harness.sender.messages(REPLY_TO, Response)
    assert (answer.attempt, answer.index, answer.final, answer.worker_id) == (2, 0, True, None)
    assert answer.error is not None
    assert answer.error.model_dump() == {
        "status": 404, "type": "invalid_request_error", "message": "no such model", "code": "model_not_found",
    }  # fmt: skip
    assert {sent.key for sent in harness.sender.sent} == {"t/r"}


async def test_without_anybody_waiting_only_the_fact() -> None:
    harness = Harness()
    await refuse(harness, envelope(reply_to=None), Refused(400, "x"), stage="media")
    assert [sent.topic for sent in harness.sender.sent] == [LIFECYCLE.name]


async def test_a_few_recovered_fields_are_enough() -> None:
    harness = Harness()
    await refuse(harness, Waiting("r", "t", REPLY_TO, 5), Refused(400, "x"), stage="media")
    assert len(harness.sender.sent) == 2


async def test_a_cancelled_request_is_stated_as_such() -> None:
    harness = Harness()
    await refuse(harness, envelope(), cancelled(), stage="router")
    [fact] = harness.sender.messages(LIFECYCLE.name, Lifecycle)
    assert (fact.event, fact.status) == (LifecycleEvent.CANCELLED, 499)


async def test_a_late_one_is_504() -> None:
    refused = deadline_exceeded(12)
    assert (refused.status, refused.code, str(refused)) == (504, "deadline_exceeded",
                                                            "the request's deadline passed 12 ms ago")  # fmt: skip


async def test_a_long_story_is_cut_for_the_fact() -> None:
    harness = Harness()
    await refuse(harness, envelope(), Refused(400, "x" * 2000), stage="media")
    [fact] = harness.sender.messages(LIFECYCLE.name, Lifecycle)
    assert len(fact.detail or "") == 500


@pytest.mark.parametrize("topic", [LIFECYCLE.name, REPLY_TO])
async def test_a_broker_that_is_away_comes_out(topic: str) -> None:
    harness = Harness()
    harness.sender.fail_next(Transient("away"), topic)
    with pytest.raises(Transient):
        await refuse(harness, envelope(), Refused(400, "x"), stage="media")
    assert len(harness.sender.sent) == 1


async def test_a_reply_topic_that_does_not_exist_costs_only_the_answer() -> None:
    harness = Harness()
    harness.sender.fail_next(BadRecord("unknown_topic", "no such topic"), REPLY_TO)
    await refuse(harness, envelope(), Refused(400, "x"), stage="media")
    assert [sent.topic for sent in harness.sender.sent] == [LIFECYCLE.name]
