"""Work is never run twice, and ends when its client, a better decision or the agent's end says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from schemas.lifecycle import LifecycleEvent as Event
from schemas.worker import WorkerState
from services.runtime.topics import CONTROL, work_topic
from services.worker.forward import sanitized
from tests.unit.worker.conftest import Stand, cancel, kinds
from tests.unit.worker.fake_engine import streaming


@pytest.fixture
async def stand(stand: Stand) -> Stand:
    return await stand.start()


class TestOnce:
    async def test_the_same_attempt_is_never_run_twice(self, stand: Stand) -> None:
        work = stand.work()
        for _ in range(3):
            await stand.give(work)
        await stand.ended()
        await stand.give(work)
        await stand.ended()
        assert len(stand.engine.chats) == len(stand.replies) == 1

    async def test_another_attempt_or_tenant_is_another_run(self, stand: Stand) -> None:
        for work in (stand.work(), stand.work(attempt=2), stand.work(tenant="t")):
            await stand.give(work)
        await stand.ended()
        assert len(stand.engine.chats) == 3

    async def test_work_for_an_older_epoch_goes_back_to_the_router(self, stand: Stand) -> None:
        await stand.give(stand.work(epoch=stand.work().epoch - 1))
        await stand.ended()
        (fact,) = stand.facts
        assert (fact.event, fact.retryable, fact.before_output, fact.code) == (Event.REFUSED, True, True, "wrong_epoch")
        assert (fact.worker_id, fact.attempt) == ("w1", 1)
        assert stand.replies == stand.engine.chats == []

    async def test_two_decisions_for_one_attempt_are_two_orders_until_one_has_lost(self, stand: Stand) -> None:
        """The first was made for our last epoch: were it the same order, the one that counts would be left out."""
        await stand.give(stand.work(epoch=stand.work().epoch - 1))
        await stand.give(stand.work())
        await stand.ended()
        assert kinds(stand) == [Event.REFUSED, Event.FIRST_TOKEN, Event.FINISHED]

    async def test_work_for_a_newer_epoch_is_the_newer_agents(self, stand: Stand) -> None:
        await stand.give(stand.work(epoch=stand.work().epoch + 1))
        await stand.ended()
        assert stand.facts == stand.replies == stand.engine.chats == []

    async def test_between_two_lives_work_goes_back(self, stand: Stand) -> None:
        work = stand.work()
        await stand.engine.stop_listening()
        await stand.until(lambda: not stand.agent.registered)
        await stand.give(work)
        await stand.ended()
        assert (kinds(stand), stand.facts[0].retryable) == ([Event.REFUSED], True)

    @pytest.mark.parametrize("change", [{"worker_id": "w2"}, None])
    async def test_what_is_no_work_of_ours_is_a_dead_letter(self, stand: Stand, change: dict[str, Any] | None) -> None:
        value = b"null" if change is None else stand.work(**change).to_bytes()
        await stand.harness.push(work_topic("w1"), value, key="k")
        await stand.harness.push(work_topic("w1"), None, key="k")
        assert [letter.code for letter in stand.harness.dead_letters] == [
            "invalid_message" if change is None else "wrong_worker"
        ]


class TestEnds:
    async def test_a_cancel_closes_the_engines_stream(self, stand: Stand) -> None:
        stand.engine.chat = streaming("a", hold=asyncio.Event())
        await stand.give(stand.work(stream=True))
        await stand.until(lambda: stand.replies)
        await stand.harness.push(CONTROL, cancel(stand))
        await stand.until(lambda: stand.engine.ended == ["r1-1"])
        await stand.ended()
        assert kinds(stand) == [Event.FIRST_TOKEN, Event.CANCELLED]
        last = stand.replies[-1]
        assert last.error is not None
        assert (last.final, last.error.status) == (True, 499)

    async def test_a_cancel_may_come_before_the_work(self, stand: Stand) -> None:
        await stand.harness.push(CONTROL, cancel(stand))
        await stand.give(stand.work())
        await stand.ended()
        assert (kinds(stand), stand.engine.chats) == ([Event.CANCELLED], [])

    @pytest.mark.parametrize(
        "order", [{"request_id": "r2"}, {"attempt": 2}, {"tenant": "t"}, {"worker_id": "w2", "attempt": 1}]
    )
    async def test_a_cancel_of_something_else_is_no_cancel(self, stand: Stand, order: dict[str, Any]) -> None:
        await stand.harness.push(CONTROL, cancel(stand, **order))
        await stand.give(stand.work())
        await stand.ended()
        assert kinds(stand) == [Event.FIRST_TOKEN, Event.FINISHED]

    async def test_an_attempt_that_lost_ends_without_a_word(self, stand: Stand) -> None:
        stand.engine.chat = streaming(hold=asyncio.Event())
        await stand.give(stand.work(stream=True))
        await stand.until(lambda: stand.engine.chats)
        epoch = stand.work().epoch
        # The same attempt on another rank or in another epoch is another decision.
        await stand.harness.push(CONTROL, cancel(stand, worker_id="w1", attempt=1, dp_rank=1, epoch=epoch))
        await stand.harness.push(CONTROL, cancel(stand, worker_id="w1", attempt=1, dp_rank=0, epoch=epoch - 1))
        assert stand.agent._executor.running == 1
        await stand.harness.push(CONTROL, cancel(stand, worker_id="w1", attempt=1, dp_rank=0, epoch=epoch))
        await stand.ended()
        assert stand.facts == stand.replies == []

    async def test_a_deadline_that_passed_is_not_worked_for(self, stand: Stand) -> None:
        await stand.give(stand.work(deadline_ms=stand.harness.clock.now_ms() - 1))
        await stand.ended()
        (reply,) = stand.replies
        assert reply.error is not None
        assert (reply.error.status, kinds(stand), stand.engine.chats) == (504, [Event.REFUSED], [])

    async def test_at_the_deadline_the_engine_is_stopped(self, stand: Stand) -> None:
        stand.engine.chat = streaming("a", hold=asyncio.Event())
        await stand.give(stand.work(stream=True, deadline_ms=stand.harness.clock.now_ms() + 100))
        await stand.ended()
        last = stand.replies[-1]
        assert last.error is not None
        assert (last.final, last.error.status) == (True, 504)
        assert (kinds(stand), stand.facts[-1].status) == ([Event.FIRST_TOKEN, Event.FAILED], 504)
        await stand.until(lambda: stand.engine.ended == ["r1-1"])


class TestStopping:
    async def test_asked_to_stop_it_drains_and_lets_work_finish(self, stand: Stand) -> None:
        hold = asyncio.Event()
        stand.engine.chat = streaming("a", hold=hold)
        await stand.give(stand.work(stream=True))
        await stand.until(lambda: stand.replies)
        stopping = asyncio.ensure_future(stand.harness.stop())
        await stand.until(lambda: stand.registrations[-1].state is WorkerState.DRAINING)
        late = stand.work("r2", stream=True)
        await stand.give(late)
        hold.set()
        await stopping
        assert sum(fact.event is Event.FINISHED for fact in stand.facts) == 2

    async def test_what_does_not_finish_in_time_goes_to_another_worker(self, stand: Stand) -> None:
        stand.engine.chat = streaming(hold=asyncio.Event())
        await stand.give(stand.work(stream=True))
        await stand.until(lambda: stand.engine.chats)
        await stand.harness.stop()
        (fact,) = stand.facts
        assert (fact.event, fact.code, fact.retryable) == (Event.FAILED, "worker_stopping", True)


def test_engines_messages_lose_what_is_nobodys_business() -> None:
    said = "cannot identify image file <_io.BytesIO object at 0x7fb010169120>, see https://h/a.png?sig=SECRET"
    assert sanitized(said) == "cannot identify image file <_io.BytesIO>, see https://h/a.png?…"
    assert sanitized("in <function load at 0x7f0a> of data:image/png;base64,AAAA") == "in <function load> of data:…"
