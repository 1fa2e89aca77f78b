"""topics and worker: what is there, and orders to it."""

from __future__ import annotations

import pytest

from schemas.control import Control, ControlKind
from schemas.worker import Heartbeat, Load, Worker, WorkerState
from services.cli import exits
from services.runtime.admin import TopicState
from services.runtime.topics import CONTROL, HEARTBEATS, TOPICS, WORKERS
from tests.fakes.audit_records import NOON_MS, worker
from tests.fakes.cli import shape


def beat(worker_id="w1", epoch=NOON_MS, at_ms=NOON_MS, **known):
    load = Load(running=2, waiting=1, kv_usage=0.25)
    return Heartbeat(worker_id=worker_id, epoch=epoch, at_ms=at_ms, load=load, **known)


@pytest.fixture
def fleet(kvroute):
    """w1 lives, w2 registered and is silent, w3 was forgotten."""
    for name in ("w1", "w2", "w3"):
        kvroute.broker.publish(WORKERS.name, worker(name), name)
    kvroute.broker.publish(WORKERS.name, None, "w3")
    kvroute.broker.publish(HEARTBEATS.name, beat(epoch=NOON_MS - 5, at_ms=NOON_MS + 9_000), "w1")
    kvroute.broker.publish(HEARTBEATS.name, beat(), "w1")
    kvroute.now_ms = NOON_MS + 1_000
    return kvroute


class TestTopics:
    def test_create(self, kvroute):
        assert kvroute("topics", "create").value["created"] == [topic.name for topic in TOPICS[:2]]
        assert "created 2 of" in kvroute("topics", "create", "--table").out

    def test_list(self, kvroute):
        ran = kvroute("topics", "list")
        assert ran.code == exits.DONE
        assert shape(ran.value) == {"name", "partitions", "expected"}

    def test_list_complains_of_missing_topics_and_wrong_partitions(self, kvroute):
        kvroute.broker.states = [TopicState("kvroute.requests.v1", 3, 12)]
        ran = kvroute("topics", "list", "--table")
        assert ran.code == exits.FAILED
        assert "missing: kvroute.decisions.v1" in ran.err
        assert "kvroute.requests.v1 has 3 partitions" in ran.err

    def test_a_broker_that_is_away(self, kvroute):
        kvroute.broker.away = True
        assert kvroute("topics", "create").code == exits.AWAY


class TestWorkers:
    def test_list(self, fleet):
        rows = {row["worker_id"]: row for row in fleet("worker", "list").value}
        assert set(rows) == {"w1", "w2"}
        assert rows["w1"] | {"leased": True, "running": 2, "waiting": 1, "proven": ["text", "image"]} == rows["w1"]
        assert rows["w2"] | {"leased": False, "heartbeat_age_seconds": None} == rows["w2"]

    def test_list_as_a_table(self, fleet):
        out = fleet("worker", "list", "--table").out
        assert "qwen3-vl" in out
        assert "text, image" in out

    def test_a_lease_ends(self, fleet):
        fleet.now_ms += 60_000
        assert [row["leased"] for row in fleet("worker", "list").value] == [False, False]

    def test_records_nobody_can_read_are_passed_over(self, fleet):
        fleet.broker.put(fleet.broker.topics[WORKERS.name][0].__class__(WORKERS.name, 0, 9, 0, b"w9", b"<html>"))
        assert len(fleet("worker", "list").value) == 2

    def test_none(self, kvroute):
        assert "kvroute run agent" in kvroute("worker", "list", "--table").err

    def test_drain_is_an_order_to_this_life_of_the_worker(self, fleet):
        assert fleet("worker", "drain", "w1", "--reason", "new driver").code == exits.DONE
        (order,) = fleet.broker.sender.messages(CONTROL.name, Control)
        assert (order.kind, order.worker_id, order.epoch) == (ControlKind.DRAIN, "w1", NOON_MS)
        assert fleet.broker.sender.sent[0].key == "w1"

    def test_retire_registers_the_worker_as_retired(self, fleet):
        assert fleet("worker", "retire", "w2").value == {"worker_id": "w2", "state": "retired", "epoch": NOON_MS}
        (registration,) = fleet.broker.sender.messages(WORKERS.name, Worker)
        assert (registration.state, registration.epoch, registration.at_ms) == (
            WorkerState.RETIRED,
            NOON_MS,
            NOON_MS + 1_000,
        )

    def test_forgetting_adds_a_tombstone(self, fleet):
        fleet("worker", "retire", "w2", "--forget")
        assert [sent.record.value is None for sent in fleet.broker.sender.sent] == [False, True]

    def test_a_living_worker_is_retired_only_by_force(self, fleet):
        ran = fleet("worker", "retire", "w1")
        assert ran.code == exits.FAILED
        assert "kvroute worker drain w1" in ran.err
        assert fleet.broker.sender.sent == []
        assert fleet("worker", "retire", "w1", "--force").code == exits.DONE

    @pytest.mark.parametrize("order", ["drain", "retire"])
    def test_an_unknown_worker(self, fleet, order):
        ran = fleet("worker", order, "w3")
        assert ran.code == exits.FAILED
        assert "kvroute worker list" in ran.err
