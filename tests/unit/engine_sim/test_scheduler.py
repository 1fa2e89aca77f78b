"""Continuous batching, chunked prefill, decode, preemption."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine_sim.events import BlockStored
from services.engine_sim.request import MediaSpan
from services.engine_sim.scheduler import Scheduler
from tests.unit.engine_sim.engine import cache, prompt, request, run, scheduler, step, stored_tokens


def test_a_prompt_gives_one_token_a_step_until_its_limit() -> None:
    engine, asked = scheduler(), request(prompt(0, 5), max_tokens=3)
    run(engine, asked)
    assert asked.output_ids == [9000, 9001, 9002]
    assert asked.finish_reason == "length"


def test_the_model_may_stop_by_itself() -> None:
    asked = request(prompt(0, 5), max_tokens=30)
    asked.stop_after = 2
    run(scheduler(), asked)
    assert (asked.output_tokens, asked.finish_reason) == (2, "stop")


def test_the_context_window_limits_what_is_generated() -> None:
    engine = Scheduler(cache(), lambda _: 1, max_model_len=8)
    asked = request(prompt(0, 6), max_tokens=30)
    run(engine, asked)
    assert asked.output_tokens == 2
    with pytest.raises(ValueError, match="has 8 tokens, expected fewer than 8"):
        engine.add(request(prompt(0, 8)))
    with pytest.raises(ValueError, match="empty"):
        engine.add(request([]))


def test_decode_blocks_become_full_one_at_a_time_without_the_last_token() -> None:
    """The last token is never computed: 6 + 7 tokens are three blocks and a token, 12 of them computed."""
    engine, asked = scheduler(), request(prompt(0, 6), max_tokens=7)
    batches = run(engine, asked)
    assert [stored_tokens(events) for events in batches] == [
        [prompt(0, 4)],
        [[4, 5, 9000, 9001]],
        [[9002, 9003, 9004, 9005]],
    ]
    parents = [event.parent_block_hash for (event,) in batches if isinstance(event, BlockStored)]
    assert parents == [None, *asked.block_hashes[:2]]


def test_a_long_prompt_is_computed_in_chunks_chained_by_parent() -> None:
    engine, asked = scheduler(budget=6), request(prompt(0, 14))
    batches = run(engine, asked)
    assert [stored_tokens(events) for events in batches] == [[prompt(0, 4)], [prompt(4, 8)]]
    assert engine.cache.queried_tokens == 14


def test_running_requests_come_before_waiting_ones_within_the_budget() -> None:
    engine = scheduler(budget=8)
    first, second = request(prompt(0, 6), "1", max_tokens=9), request(prompt(100, 9), "2")
    engine.add(first)
    engine.add(second)
    step(engine)
    assert (first.computed_tokens, second.computed_tokens) == (6, 2)
    step(engine)
    assert (first.computed_tokens, second.computed_tokens) == (7, 9)
    assert second.finished


def test_no_more_than_max_num_seqs_run() -> None:
    engine = scheduler(seqs=1)
    engine.add(request(prompt(0, 5), max_tokens=4))
    engine.add(request(prompt(9, 5)))
    step(engine)
    assert (len(engine.running), len(engine.waiting)) == (1, 1)


def test_a_request_waits_until_its_whole_prompt_fits() -> None:
    engine = scheduler(num_blocks=5, budget=4)
    engine.add(request(prompt(0, 6), max_tokens=3))
    step(engine)
    engine.add(request(prompt(50, 9)))
    step(engine)
    assert (len(engine.running), len(engine.waiting)) == (1, 1)


def test_the_youngest_request_is_preempted_when_blocks_run_out_and_starts_over_from_its_prefix() -> None:
    engine = scheduler(num_blocks=6)
    old, young = request(prompt(0, 8), "old", max_tokens=6), request(prompt(100, 8), "young", max_tokens=6)
    run(engine, old, young)
    assert (old.preemptions, young.preemptions) == (0, 1)
    assert (old.output_tokens, young.output_tokens) == (6, 6)
    assert young.output_ids == prompt(9000, 6)
    assert engine.cache.pool.usage == 0


def test_an_aborted_request_frees_its_blocks_wherever_it_is() -> None:
    engine = scheduler()
    running, waiting = request(prompt(0, 9), max_tokens=9), request(prompt(9, 9))
    engine.add(running)
    step(engine)
    engine.add(waiting)
    for each in (running, waiting, running):
        engine.abort(each)
    assert not engine.has_work
    assert engine.cache.pool.usage == 0
    assert running.finish_reason == "abort"


def test_media_are_encoded_when_their_tokens_are_computed_and_not_while_at_hand() -> None:
    image = MediaSpan("image", "A", 1, 6)
    engine = scheduler()
    for expected in (6, 0):
        engine.add(request([expected, *prompt(0, 8)], media=[image]))
        planned = engine.schedule()
        assert planned.vision_tokens == expected
        engine.complete(planned)


def test_a_medium_is_encoded_again_only_when_its_output_had_to_give_way() -> None:
    """Block size 4, prompts that share nothing but their media: the encoder's outputs alone are found again."""
    engine = scheduler(encoder=12)

    def encoded(first: int, *names: str) -> int:
        media = [MediaSpan("image", name, 6 * place, 6) for place, name in enumerate(names)]
        engine.add(request([first] * (6 * len(names) + 1), media=media))
        planned = engine.schedule()
        engine.complete(planned)
        return planned.vision_tokens

    assert [encoded(1, "A"), encoded(2, "B"), encoded(3, "A")] == [6, 6, 0]
    assert encoded(4, "C") == 6, "B gave way, for A was used later"
    assert [encoded(5, "A"), encoded(6, "B")] == [0, 6]
    assert encoded(7, "D", "D") == 6, "twice in a prompt, encoded once"


def test_media_whose_prompt_is_cached_are_not_looked_for() -> None:
    engine = scheduler(encoder=6)
    tokens = prompt(0, 9)
    run(engine, request(tokens, media=[MediaSpan("image", "A", 0, 8)]))
    run(engine, request(prompt(50, 9), media=[MediaSpan("image", "B", 0, 6)]))
    assert "A" not in engine.encoder_cache
    again = request(tokens, "again", media=[MediaSpan("image", "A", 0, 8)])
    engine.add(again)
    planned = engine.schedule()
    assert (planned.prefill_tokens, planned.vision_tokens) == (1, 0)
    assert "B" in engine.encoder_cache


def test_a_step_ends_before_a_medium_whose_output_finds_no_room() -> None:
    engine = scheduler(budget=16, encoder=8)
    asked = request(prompt(0, 30), media=[MediaSpan("image", "A", 2, 8), MediaSpan("image", "B", 12, 8)])
    engine.add(asked)
    steps = []
    while not asked.finished:
        planned = engine.schedule()
        steps.append((asked.computed_tokens, planned.vision_tokens))
        engine.complete(planned)
    assert steps == [(12, 8), (28, 8), (30, 0)]


def test_what_runs_keeps_its_media_at_hand() -> None:
    """A's tokens take two steps: until they are computed its output stays, and B waits for the room."""
    engine = scheduler(budget=6, encoder=8)
    first = request(prompt(0, 9), "1", max_tokens=2, media=[MediaSpan("image", "A", 0, 8)])
    second = request(prompt(50, 9), "2", media=[MediaSpan("image", "B", 0, 8)])
    engine.add(first)
    engine.complete(engine.schedule())
    engine.add(second)
    planned = engine.schedule()
    assert [(asked.request_id, tokens) for asked, tokens in planned.work] == [("1", 3)]
    engine.complete(planned)
    assert engine.schedule().vision_tokens == 8
    assert "A" not in engine.encoder_cache


def test_what_is_aborted_lets_go_of_its_media() -> None:
    engine = scheduler(budget=4, encoder=8)
    asked = request(prompt(0, 9), media=[MediaSpan("image", "A", 0, 8)])
    engine.add(asked)
    engine.complete(engine.schedule())
    assert not engine.encoder_cache.make_room(4)
    engine.abort(asked)
    assert engine.encoder_cache.make_room(4)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=12),
    st.integers(12, 40),
    st.integers(1, 40),
    st.integers(1, 5),
)
def test_every_request_ends_with_all_its_tokens_and_every_block_comes_back(
    asked: list[tuple[int, int, int]], num_blocks: int, budget: int, seqs: int
) -> None:
    engine = scheduler(num_blocks, budget=budget, seqs=seqs)
    requests = [request([kind] * length, str(index), max_tokens=out) for index, (kind, length, out) in enumerate(asked)]
    run(engine, *requests, limit=5000)
    assert [each.output_tokens for each in requests] == [out for _, _, out in asked]
    assert engine.cache.pool.free_count == num_blocks - 1
    assert all((each.cached_tokens or 0) <= (each.prompt_tokens - 1) // 4 * 4 for each in requests)


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens"])
def test_limits_below_one_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0"):
        Scheduler(cache(), lambda _: 0, **{name: 0})
