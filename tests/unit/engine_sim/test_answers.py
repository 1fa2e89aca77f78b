"""Request fields, metrics text, caches, ports. (The bodies of answers are compared with vLLM's recorded ones.)"""

from __future__ import annotations

import socket
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.engine_sim.asked import parse_asked
from services.engine_sim.errors import ApiError
from services.engine_sim.exposition import RankState, exposition
from services.engine_sim.media_cache import Lru
from services.engine_sim.ports import free_run
from services.engine_sim.publisher import binds


def test_what_a_body_leaves_out() -> None:
    asked = parse_asked({}, {})
    assert (asked.max_tokens, asked.stream, asked.return_token_ids, asked.rank) == (None, False, False, None)


def test_where_a_session_comes_from() -> None:
    header = {"X-Session-ID": "header"}
    assert parse_asked({"session_id": "body"}, header).session_id == "body"
    assert parse_asked({"vllm_xargs": {"session_id": "xargs"}}, header).session_id == "header"
    assert parse_asked({"vllm_xargs": {"session_id": "xargs"}}, {}).session_id == "xargs"


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    assert parse_asked({"max_tokens": 3, "max_completion_tokens": 4}, {}).max_tokens == 4


@pytest.mark.parametrize(("rank", "read"), [("1", 1), ("one", None)])
def test_the_rank_is_a_header(rank: str, read: int | None) -> None:
    assert parse_asked({}, {"X-data-parallel-rank": rank}).rank == read


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 2},
        {"max_tokens": 0},
        {"max_tokens": "5"},
        {"max_tokens": True},
        {"stream": "yes"},
        {"stream_options": {"include_usage": True}},
        {"cache_salt": ""},
        {"cache_salt": 3},
        {"vllm_xargs": []},
    ],
    ids=str,
)
def test_wrong_fields_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as error:
        parse_asked(wrong, {})
    assert error.value.status == 400
    assert error.value.param == next(iter(wrong))


def test_metrics_carry_vllms_names_and_labels() -> None:
    state = RankState(2, 3, 0.5, 100, 40, 90, 10, 1, 16, 4096)
    text = exposition('a"b', [state, state], 7, 4, 1_000.5)
    samples = {
        (sample.name, sample.labels.get("engine")): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    values = {name: sample.value for (name, rank), sample in samples.items() if rank == "0"}
    assert values == {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 3,
        "vllm:kv_cache_usage_perc": 0.5,
        "vllm:prefix_cache_queries_total": 100,
        "vllm:prefix_cache_hits_total": 40,
        "vllm:prompt_tokens_total": 90,
        "vllm:generation_tokens_total": 10,
        "vllm:num_preemptions_total": 1,
        "vllm:mm_cache_queries_total": 7,
        "vllm:mm_cache_hits_total": 4,
        "vllm:cache_config_info": 1,
    }
    assert samples["process_start_time_seconds", None].value == 1_000.5
    assert samples["vllm:num_requests_running", "1"].labels["model_name"] == 'a"b'
    config = samples["vllm:cache_config_info", "1"].labels
    assert (config["block_size"], config["num_gpu_blocks"]) == ("16", "4096")


def test_a_cache_forgets_what_was_not_used_for_longest() -> None:
    cache: Lru[str, int] = Lru(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    assert (cache.queries, cache.hits) == (4, 3)


def test_neighbouring_ports_are_free() -> None:
    first = free_run("127.0.0.1", 4)
    for port in range(first, first + 4):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("endpoint", "bound"),
    [("tcp://*:5557", True), ("tcp://[::]:5557", True), ("ipc:///tmp/x", True), ("tcp://agent:5557", False)],
)
def test_an_endpoint_with_a_wildcard_is_bound_and_any_other_connected_to(endpoint: str, bound: bool) -> None:
    assert binds(endpoint) is bound
