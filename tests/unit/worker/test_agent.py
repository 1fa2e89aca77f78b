"""The agent's life: what it announces, when it begins anew, and when it gives way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from schemas.control import Control, ControlKind
from schemas.worker import Worker, WorkerState
from services.kv.address import addresses
from services.runtime.errors import Transient
from services.runtime.topics import CONTROL, KV_EVENTS, WORKERS, work_topic
from services.worker import slot
from services.worker.agent import Superseded
from tests.unit.worker.conftest import Stand
from tests.unit.worker.fake_engine import BLOCK_SIZE, FakeEngine, stored

TOKENS = list(range(100, 116))
CHAIN = addresses(TOKENS, BLOCK_SIZE)


async def test_it_registers_what_the_engine_says_about_itself(stand: Stand) -> None:
    await stand.start()
    (worker,) = stand.registrations
    assert (worker.worker_id, worker.model, worker.loras, worker.block_size) == ("w1", "m", ["adapter"], BLOCK_SIZE)
    assert (worker.engine, worker.engine_version, worker.dp_size) == ("vllm", "0.32.0", 1)
    assert (worker.limits.max_model_len, worker.limits.num_blocks) == (8192, 512)
    assert worker.epoch == stand.harness.clock.now_ms()
    assert worker.contract is not None
    assert "no model folder for m" in (worker.contract.text.detail or "")
    assert stand.harness.ready


async def test_the_work_topic_and_its_end_come_before_the_registration(stand: Stand) -> None:
    await stand.start()
    assert stand.harness.topics_made == [work_topic("w1")]
    assert work_topic("w1") in stand.harness.groups


async def test_the_first_record_is_a_snapshot_and_the_heartbeat_says_where_it_is(stand: Stand) -> None:
    await stand.start()
    first = stand.kv_events[0]
    assert (first.seq, first.snapshot is not None, first.complete) == (0, True, True)
    beat = stand.heartbeats[0]
    assert beat.snapshot is not None
    assert (beat.snapshot.topic, beat.snapshot.offset, beat.seq) == (KV_EVENTS.name, 0, 0)
    assert (beat.epoch, beat.healthy) == (first.epoch, True)
    assert (beat.load.running, beat.load.waiting, beat.load.kv_usage) == (3, 1, 0.25)


async def test_events_become_addresses(stand: Stand) -> None:
    await stand.start()
    await stand.engine.publish(stored([1, 2], TOKENS[:8]))
    await stand.engine.publish(stored([3], TOKENS[8:12], parent=2))
    await stand.until(lambda: stand.resident() == set(CHAIN[:3]))
    await stand.engine.publish({"type": "BlockRemoved", "block_hashes": [3], "medium": "GPU"})
    await stand.until(lambda: stand.resident() == set(CHAIN[:2]))
    await stand.engine.publish({"type": "AllBlocksCleared"}, stored([9], TOKENS[:4]))
    await stand.until(lambda: stand.resident() == set(CHAIN[:1]))


async def test_beside_a_living_engine_it_catches_up_by_replay(stand: Stand) -> None:
    await stand.engine.publish(stored([1, 2], TOKENS[:8]))
    await stand.start()
    assert stand.resident() == set(CHAIN[:2])
    assert stand.kv_events[0].complete


async def test_what_replay_no_longer_holds_is_not_claimed(stand: Stand) -> None:
    await stand.engine.publish(stored([1, 2], TOKENS[:8]))
    await stand.engine.publish(stored([3], TOKENS[8:12], parent=2))
    await stand.engine.publish(stored([7], TOKENS[:4]))
    stand.engine.forget(before=1)
    await stand.start()
    assert stand.resident() == set(CHAIN[:1])
    assert (stand.kv_events[0].complete, stand.kv_events[0].unknown) == (False, 1)


class TestOldReplay:
    @pytest.fixture
    async def engine(self) -> Any:
        async with FakeEngine(topic_frames=False) as fake:
            yield fake

    async def test_replay_without_topic_frames_is_read_too(self, stand: Stand) -> None:
        await stand.engine.publish(stored([1, 2], TOKENS[:8]))
        await stand.start()
        assert stand.resident() == set(CHAIN[:2])


async def test_a_lost_batch_is_replayed(stand: Stand) -> None:
    await stand.start()
    await stand.engine.publish(stored([1], TOKENS[:4]))
    await stand.until(lambda: stand.resident() == set(CHAIN[:1]))
    await stand.engine.publish(stored([2], TOKENS[4:8], parent=1), lose=True)
    await stand.engine.publish(stored([3], TOKENS[8:12], parent=2))
    await stand.until(lambda: stand.resident() == set(CHAIN[:3]))
    assert stand.engine.replays == [0, 1]
    assert stand.kv_events[-1].complete


async def test_a_lost_last_batch_is_found_in_the_silence_after_it(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "QUIET_SECONDS", (0.01, 0.05))
    await stand.start()
    await stand.engine.publish(stored([1], TOKENS[:4]), lose=True)
    await stand.until(lambda: stand.resident() == set(CHAIN[:1]))
    await stand.engine.publish(stored([2], TOKENS[4:8], parent=1), lose=True)
    await stand.until(lambda: stand.resident() == set(CHAIN[:2]))
    assert stand.kv_events[-1].complete


async def test_a_batch_that_comes_twice_counts_once(stand: Stand) -> None:
    await stand.start()
    await stand.engine.publish(stored([1], TOKENS[:4]))
    await stand.engine.again(0)
    await stand.engine.publish({"type": "BlockRemoved", "block_hashes": [1]}, stored([5], TOKENS[4:8]))
    alone = addresses(TOKENS[4:8], BLOCK_SIZE)
    await stand.until(lambda: stand.resident() == set(alone))
    assert len(stand.registrations) == 1


async def test_after_a_loss_for_good_nothing_older_is_claimed(stand: Stand) -> None:
    await stand.start()
    await stand.engine.publish(stored([1, 2], TOKENS[:8]))
    await stand.until(lambda: len(stand.resident()) == 2)
    await stand.engine.publish({"type": "BlockRemoved", "block_hashes": [2]}, lose=True)
    stand.engine.forget(before=2)
    await stand.engine.publish(stored([7], TOKENS[:4]))
    await stand.until(lambda: stand.resident() == set(CHAIN[:1]))
    assert not stand.kv_events[-1].complete


async def test_rubbish_in_the_stream_is_a_loss_not_an_end(stand: Stand) -> None:
    await stand.start()
    await stand.engine.publish(stored([1], TOKENS[:4]))
    await stand.engine.publish_raw(b"\xc1 no batch")
    await stand.engine.publish(stored([2, 3], TOKENS[:8]))
    await stand.until(lambda: stand.resident() == set(CHAIN[:2]))
    assert not stand.kv_events[-1].complete


async def test_an_engine_that_restarted_unheard_is_noticed_in_the_silence(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "QUIET_SECONDS", (0.01, 0.05))
    await stand.start()
    await stand.engine.publish(stored([1], TOKENS[:4]))
    await stand.until(lambda: stand.resident() == set(CHAIN[:1]))
    stand.engine.new_life()
    await stand.engine.publish(stored([5], TOKENS[4:8]), lose=True)
    await stand.until(lambda: len(stand.registrations) == 2)
    await stand.until(lambda: stand.resident() == set(addresses(TOKENS[4:8], BLOCK_SIZE)))


async def test_an_engine_whose_process_began_anew_is_another(stand: Stand) -> None:
    stand.engine.started_at = 1_000.5
    await stand.start()
    stand.engine.started_at = 2_000.25
    await stand.agent.beat()
    stand.engine.started_at = 1_000.5
    await stand.agent.beat()
    assert len(stand.registrations) == 1
    stand.engine.started_at = 2_000.25
    await stand.agent.beat()
    await stand.agent.beat()
    await stand.until(lambda: len(stand.registrations) == 2)


async def test_an_engine_without_a_buffer_is_not_taken_for_a_new_one(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "QUIET_SECONDS", (0.01, 0.01))
    await stand.start()
    for block in range(3):
        await stand.engine.publish(stored([block + 1], TOKENS[4 * block : 4 * block + 4], parent=block or None))
        stand.engine.forget(before=99)
        asked = len(stand.engine.replays)
        await stand.until(lambda asked=asked: len(stand.engine.replays) > asked + 1)
    assert len(stand.registrations) == 1


async def test_a_restarted_engine_begins_a_new_epoch(stand: Stand) -> None:
    await stand.start()
    await stand.engine.publish(stored([1, 2], TOKENS[:8]))
    await stand.engine.publish(stored([3], TOKENS[8:12], parent=2))
    await stand.until(lambda: len(stand.resident()) == 3)
    stand.engine.new_life()
    await stand.engine.publish(stored([9], TOKENS[:4]))
    await stand.until(lambda: len(stand.registrations) == 2)
    first, second = stand.registrations
    assert second.epoch > first.epoch
    await stand.until(lambda: stand.resident(second.epoch) == set(CHAIN[:1]))


async def test_an_engine_that_went_and_came_back_begins_a_new_epoch(stand: Stand) -> None:
    await stand.start()
    await stand.engine.stop_listening()
    await stand.until(lambda: not stand.agent.registered)
    assert not stand.harness.ready
    stand.engine.new_life()
    await stand.engine.listen()
    await stand.until(lambda: len(stand.registrations) == 2)
    assert stand.registrations[1].epoch > stand.registrations[0].epoch


async def test_an_unwell_engine_is_told_in_heartbeats_and_keeps_its_epoch(stand: Stand) -> None:
    await stand.start()
    stand.engine.health_status = 503
    assert stand.agent.life is not None
    life = stand.agent.life
    await stand.until(lambda: not life.healthy)
    await stand.harness.tick("heartbeat")
    assert not stand.heartbeats[-1].healthy
    assert len(stand.registrations) == 1


async def test_its_epoch_is_above_its_own_last_one_whatever_the_clock_says(stand: Stand) -> None:
    last = stand.harness.clock.now_ms() + 5_000
    await stand.harness.push(WORKERS, registration(last), key="w1")
    await stand.start()
    assert stand.registrations[-1].epoch == last + 1


async def test_a_newer_agent_of_its_name_makes_it_exit(stand: Stand) -> None:
    await stand.start()
    epoch = stand.registrations[0].epoch
    await stand.harness.push(WORKERS, registration(epoch + 1, agent="other-host"), key="w1")
    assert isinstance(stand.harness.failure, Superseded)
    assert "other-host" in str(stand.harness.failure)
    await stand.harness.tick("heartbeat")
    assert len(stand.heartbeats) == 1


async def test_an_operator_can_retire_it(stand: Stand) -> None:
    await stand.start()
    epoch = stand.registrations[0].epoch
    await stand.harness.push(WORKERS, registration(epoch, state=WorkerState.RETIRED), key="w1")
    assert isinstance(stand.harness.failure, Superseded)


async def test_what_the_agent_before_it_registers_late_is_registered_over(stand: Stand) -> None:
    """Of a compacted topic the last record is left: routers that start later would know only the old life."""
    await stand.start()
    mine = stand.registrations[0]
    late = registration(mine.epoch - 1, state=WorkerState.DRAINING)
    await stand.harness.push(WORKERS, late, key="w1")
    for _ in range(2):
        await stand.harness.tick("heartbeat")
    assert [(worker.epoch, worker.state) for worker in stand.registrations] == [(mine.epoch, WorkerState.LIVE)] * 2


async def test_others_registrations_are_not_its_business(stand: Stand) -> None:
    await stand.start()
    other = registration(stand.registrations[0].epoch + 1).model_copy(update={"worker_id": "w2"})
    await stand.harness.push(WORKERS, other, key="w2")
    await stand.harness.push(WORKERS, None, key="w1")
    assert stand.harness.failure is None


@dataclass
class Asked:
    order: dict[str, Any]
    given: bool


@pytest.mark.parametrize(
    "asked",
    [
        Asked({}, True), Asked({"dp_rank": 0}, True), Asked({"dp_rank": 1}, False), Asked({"epoch": 1}, False),
        Asked({"worker_id": "w2"}, False),
    ],
)  # fmt: skip
async def test_a_snapshot_is_given_when_asked_for(stand: Stand, asked: Asked) -> None:
    await stand.start()
    await stand.engine.publish(stored([1], TOKENS[:4]))
    await stand.until(lambda: len(stand.resident()) == 1)
    stand.harness.clock.advance(11)
    now = stand.harness.clock.now_ms()
    order = Control(**{"kind": ControlKind.SNAPSHOT, "at_ms": now, "worker_id": "w1"} | asked.order)
    await stand.harness.push(CONTROL, order)
    if asked.given:
        await stand.until(lambda: stand.kv_events[-1].snapshot is not None)
    await stand.engine.publish(stored([2], TOKENS[4:8], parent=1))
    await stand.until(lambda: len(stand.resident()) == 2)
    assert sum(record.snapshot is not None for record in stand.kv_events) == 1 + asked.given
    await stand.harness.tick("heartbeat")
    position = stand.heartbeats[-1].snapshot
    assert position is not None
    assert (position.offset > 0) == asked.given


async def test_kafka_away_costs_nothing_but_time(stand: Stand) -> None:
    await stand.start()
    stand.harness.sender.fail_next(Transient("away"), topic=KV_EVENTS.name, times=2)
    await stand.engine.publish(stored([1], TOKENS[:4]))
    await stand.until(lambda: stand.agent.life is not None and stand.agent.life.slots[0].publisher.stalled)
    await stand.engine.publish(stored([2], TOKENS[4:8], parent=1))
    await stand.until(lambda: stand.resident() == set(CHAIN[:2]))


async def test_an_engine_without_events_is_a_worker_with_an_empty_cache(stand: Stand) -> None:
    stand.engine.events = False
    await stand.start()
    (record,) = stand.kv_events
    assert (record.snapshot is not None, record.complete) == (True, False)
    assert len(stand.registrations) == 1


async def test_an_engine_that_is_not_up_yet_is_waited_for(stand: Stand) -> None:
    await stand.engine.stop_listening()
    await stand.harness.start()
    assert not stand.harness.ready
    await stand.engine.listen()
    await stand.until(lambda: stand.agent.registered)


async def test_ordered_to_drain_it_says_so_and_goes_on(stand: Stand) -> None:
    await stand.start()
    now = stand.harness.clock.now_ms()
    await stand.harness.push(CONTROL, Control(kind=ControlKind.DRAIN, at_ms=now, worker_id="w1"))
    await stand.until(lambda: len(stand.registrations) == 2)
    assert [worker.state for worker in stand.registrations] == [WorkerState.LIVE, WorkerState.DRAINING]
    assert stand.registrations[0].epoch == stand.registrations[1].epoch
    await stand.harness.tick("heartbeat")
    assert len(stand.heartbeats) == 2


def registration(epoch: int, *, state: WorkerState = WorkerState.LIVE, agent: str = "") -> Worker:
    return Worker(worker_id="w1", epoch=epoch, state=state, model="m", block_size=BLOCK_SIZE, at_ms=0, agent=agent)
