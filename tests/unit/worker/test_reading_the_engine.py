"""The small rules by which the engine is read: endpoints, seqs, metrics, server-sent events."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime.errors import ConfigError
from services.worker import sse
from services.worker.endpoints import Endpoint, sources
from services.worker.engine import EventSource, error_message
from services.worker.engine_metrics import read_metrics
from services.worker.remembered import Remembered
from services.worker.salts import GRACE_SECONDS, Salts
from services.worker.seq_tracker import SeqTracker, Verdict
from services.worker.sse import EventSplitter, SseError, data_of, is_done

URL = "http://engine.example:8100"


class TestEndpoints:
    @pytest.mark.parametrize(
        ("stated", "ours"),
        [
            ("tcp://*:5557", Endpoint("tcp://engine.example:5557")),
            ("tcp://[::]:5557", Endpoint("tcp://engine.example:5557")),
            ("ipc:///tmp/kv", Endpoint("ipc:///tmp/kv")),
            ("tcp://10.0.0.9:5557", Endpoint("tcp://10.0.0.9:5557", bind=True)),
        ],
    )
    def test_where_the_engine_binds_we_connect_and_the_other_way_round(self, stated: str, ours: Endpoint) -> None:
        (source,) = sources([EventSource(0, stated)], URL)
        assert (source.events, source.replay) == (ours, None)

    def test_the_engine_always_binds_replay(self) -> None:
        (source,) = sources([EventSource(0, "tcp://*:5557", "tcp://*:5558", "kv")], "http://[::1]:8100")
        assert source.replay == Endpoint("tcp://[::1]:5558")
        assert source.topic == "kv"

    def test_ranks_have_their_own_endpoints(self) -> None:
        found = sources([EventSource(0, "tcp://*:5557", "tcp://*:6557"), EventSource(1, "tcp://*:5558")], URL)
        assert [(each.rank, each.events.address[-4:]) for each in found] == [(0, "5557"), (1, "5558")]

    def test_or_one_with_ports_that_count_up(self) -> None:
        same = [EventSource(rank, "tcp://*:5557", "tcp://*:6557") for rank in range(2)]
        by_engine = sources(same, URL)
        by_settings = sources([], URL, events="tcp://*:5557", replay="tcp://*:6557", ranks=2)
        assert by_engine == by_settings
        assert [each.events.address[-4:] for each in by_engine] == ["5557", "5558"]
        assert [each.replay.address[-4:] for each in by_engine if each.replay] == ["6557", "6558"]

    def test_a_rank_without_a_port_is_a_wrong_setting(self) -> None:
        with pytest.raises(ConfigError, match="has no port"):
            sources([], URL, events="ipc:///tmp/kv", ranks=2)

    def test_no_events_are_no_sources(self) -> None:
        assert sources([], URL) == []


class TestSeqs:
    def tracker(self, last: int, at: float = 10.0) -> SeqTracker:
        made = SeqTracker()
        made.took(last, at)
        return made

    def test_a_process_counts_from_zero(self) -> None:
        assert SeqTracker().judge(0, 1.0) is Verdict.NEXT
        assert SeqTracker().judge(7, 1.0) is Verdict.GAP

    @pytest.mark.parametrize(
        ("seq", "at", "verdict"),
        [
            (6, 11.0, Verdict.NEXT), (8, 11.0, Verdict.GAP), (5, 10.0, Verdict.DUPLICATE), (2, 7.0, Verdict.DUPLICATE),
            (0, 11.0, Verdict.RESTARTED), (5, 10.1, Verdict.RESTARTED), (0, float("-inf"), Verdict.DUPLICATE),
        ],
    )  # fmt: skip
    def test_a_lower_seq_is_old_news_or_a_new_process(self, seq: int, at: float, verdict: Verdict) -> None:
        assert self.tracker(5).judge(seq, at) is verdict


class TestMetrics:
    def test_loads_are_by_rank_and_the_cache_is_sized(self) -> None:
        found = read_metrics(
            '# TYPE vllm:num_requests_running gauge\n'
            'vllm:num_requests_running{engine="0",model_name="a\\"b"} 2.0\n'
            'vllm:num_requests_running{engine="1",model_name="m"} 4.0\n'
            'vllm:num_requests_waiting{engine="1"} 1e1\n'
            'vllm:kv_cache_usage_perc{engine="1"} 0.5\n'
            'vllm:gpu_cache_usage_perc{engine="0"} 1.7\n'
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n'
            'python_gc_objects_collected_total{generation="0"} 5.0\n'
        )
        assert (found.block_size, found.num_blocks) == (16, None)
        assert [(load.running, load.waiting, load.kv_usage) for load in found.loads.values()] == [
            (2, 0, 1.0), (4, 10, 0.5),
        ]  # fmt: skip

    def test_nothing_known_is_nothing_said(self) -> None:
        found = read_metrics("rubbish\nvllm:num_requests_running NaN\nvllm:kv_cache_usage_perc NaN\n")
        assert (found.block_size, found.num_blocks, found.loads) == (None, None, {})


class TestServerSentEvents:
    EVENTS = (b'data: {"a": 1}', b"data: x\ndata: y", b": ping", b"event: e\ndata: [DONE]")

    @given(st.lists(st.integers(0, 70), max_size=12), st.booleans())
    def test_however_the_bytes_are_cut_the_events_are_whole(self, cuts: list[int], windows: bool) -> None:
        stream = b"".join(event + b"\n\n" for event in self.EVENTS)
        stream = stream.replace(b"\n", b"\r\n") if windows else stream
        splitter = EventSplitter()
        edges = [0, *sorted(cuts), len(stream)]
        found = [event for low, high in pairwise(edges) for event in splitter.feed(stream[low:high])]
        assert tuple(found) == self.EVENTS

    def test_the_data_of_an_event(self) -> None:
        assert [data_of(event) for event in self.EVENTS] == [b'{"a": 1}', b"x\ny", None, b"[DONE]"]
        assert is_done(b"[DONE]")
        assert not is_done(b"{}")

    def test_an_event_without_end_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sse, "EVENT_LIMIT", 100)
        splitter = EventSplitter()
        splitter.feed(b"x" * 100)
        with pytest.raises(SseError, match="more than 100 bytes"):
            splitter.feed(b"x")


class TestMemory:
    def test_what_is_remembered_is_forgotten_in_time(self) -> None:
        seen: Remembered[str] = Remembered(10.0)
        assert seen.add("a", 0.0)
        assert not seen.add("a", 9.0)
        assert seen.has("a", 18.9)
        assert not seen.has("a", 19.0)
        assert len(seen) == 0

    def test_salts_are_known_once_sent_and_in_flight_a_moment_longer(self) -> None:
        now = [0.0]
        salts = Salts(lambda: now[0])
        salts.begin("s")
        salts.begin(None)
        assert "s" in salts
        assert salts.in_flight()
        salts.end("s")
        assert salts.in_flight()
        now[0] = GRACE_SECONDS
        assert not salts.in_flight()
        assert "s" in salts


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"error": {"message": "m", "code": 400}}', "m"), (b'{"message": "m"}', "m"), (b'{"error": "m"}', "m"),
        (b'{"detail": "m"}', "m"), (b"<html>", "<html>"), (b"[1]", "[1]"),
    ],
)  # fmt: skip
def test_an_error_is_read_in_whatever_form_it_comes(content: bytes, message: str) -> None:
    assert error_message(content) == message
