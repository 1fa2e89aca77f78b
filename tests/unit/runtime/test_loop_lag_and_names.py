"""The loop-lag gauge, topic prefixes, metric labels and the catalogue."""

from __future__ import annotations

import asyncio
import time

import pytest

from services.runtime import metrics
from services.runtime.loop_lag import LoopLag
from services.runtime.names import TopicNames


def test_the_worst_of_the_last_ten_seconds_counts() -> None:
    lag = LoopLag()
    for now, late in ((0.0, 0.3), (1.0, 0.1), (2.0, 0.2), (3.0, 0.05)):
        lag.note(now, late)
    assert lag.worst == 0.3
    lag.note(10.5, 0.01)
    assert lag.worst == 0.2
    lag.note(30.0, 0.0)
    assert lag.worst == 0.0
    assert lag.worst_ever == 0.3


async def test_it_sees_a_blocked_loop() -> None:
    lag = LoopLag()
    task = asyncio.create_task(lag.run())
    await asyncio.sleep(0.01)
    time.sleep(0.2)  # noqa: ASYNC251 - the fault that is to be seen
    await asyncio.sleep(0.06)
    task.cancel()
    assert lag.worst > 0.1


@pytest.mark.parametrize("prefix", ["", "blue."])
def test_names_go_out_and_come_back(prefix: str) -> None:
    names = TopicNames(prefix)
    assert names.outside("kvroute.requests.v1") == f"{prefix}kvroute.requests.v1"
    assert names.inside(names.outside("kvroute.requests.v1")) == "kvroute.requests.v1"
    assert names.ours(f"{prefix}kvroute.requests.v1")
    assert not names.ours("other.requests.v1")


@pytest.mark.parametrize(
    ("topic", "label"),
    [
        ("kvroute.requests.v1", "kvroute.requests.v1"),
        ("kvroute.work.w1.v1", "kvroute.work.{}"),
        ("kvroute.responses.mine", "kvroute.responses.{}"),
    ],
)
def test_topics_made_at_run_time_share_a_label(topic: str, label: str) -> None:
    assert metrics.topic_label(topic) == label


def test_the_catalogue_names_each_metric_once_with_a_meaning() -> None:
    names = [info.name for info in metrics.CATALOGUE]
    assert len(names) == len(set(names))
    for info in metrics.CATALOGUE:
        assert info.name.startswith("kvroute_")
        assert info.meaning
        assert info.name.endswith("_total") == (info.kind == "counter")
