"""What an engine announces of its cache, request by request."""

from __future__ import annotations

from services.engine_sim.events import AllBlocksCleared, BlockStored
from tests.unit.engine_sim.engine import cache, prompt, removed_hashes, request, run, scheduler, stored_tokens


def test_the_full_blocks_of_a_prompt_are_one_event_at_the_root() -> None:
    ((event,),) = run(scheduler(), request(prompt(0, 11)))
    assert isinstance(event, BlockStored)
    assert (event.token_ids, len(event.block_hashes), event.parent_block_hash) == (prompt(0, 8), 2, None)
    assert (event.block_size, event.medium, event.group_idx, event.kv_cache_spec_kind) == (
        4,
        "GPU",
        0,
        "full_attention",
    )


def test_a_hit_announces_nothing_and_what_follows_it_names_its_last_block_as_parent() -> None:
    engine = scheduler()
    ((first,),) = run(engine, request(prompt(0, 9)))
    assert isinstance(first, BlockStored)
    again = request(prompt(0, 9))
    assert run(engine, again) == []
    assert again.cached_tokens == 8
    ((longer,),) = run(engine, request([*prompt(0, 8), *prompt(50, 5)]))
    assert isinstance(longer, BlockStored)
    assert (longer.parent_block_hash, longer.token_ids) == (first.block_hashes[-1], prompt(50, 4))


def test_a_fully_cached_prompt_of_whole_blocks_announces_its_last_block_again() -> None:
    engine = scheduler()
    run(engine, request(prompt(0, 8)))
    again = request(prompt(0, 8))
    (events,) = run(engine, again)
    assert stored_tokens(events) == [prompt(4, 4)]
    assert (again.cached_tokens, again.created_tokens) == (4, 4)
    assert engine.cache.pool.usage == 0


def test_the_session_and_the_adapter_of_a_request_stand_in_its_events() -> None:
    asked = request(prompt(0, 4))
    asked.session_id, asked.lora_name, asked.lora_id = "s", "l", 3
    ((event,),) = run(scheduler(), asked)
    assert isinstance(event, BlockStored)
    assert (event.session_id, event.lora_name, event.lora_id, event.extra_keys) == ("s", "l", 3, [("l",)])


def test_a_request_that_asks_for_full_reports_announces_what_it_hit_first() -> None:
    engine = scheduler()
    run(engine, request(prompt(0, 8)))
    asked = request(prompt(0, 12))
    asked.report_full = True
    (events,) = run(engine, asked)
    assert stored_tokens(events) == [prompt(0, 8), prompt(8, 4)]


def test_what_is_evicted_is_announced_before_the_blocks_that_displaced_it() -> None:
    engine = scheduler(num_blocks=5)
    ((first,),) = run(engine, request(prompt(0, 12)))
    assert isinstance(first, BlockStored)
    (events,) = run(engine, request(prompt(50, 8)))
    # One of the four blocks never held anything; the tail goes before the root.
    assert removed_hashes(events) == [first.block_hashes[2]]
    assert isinstance(events[-1], BlockStored)


def test_a_reset_is_announced_with_the_next_step() -> None:
    engine = scheduler()
    run(engine, request(prompt(0, 8)))
    assert engine.cache.reset()
    (events,) = run(engine, request(prompt(0, 8)))
    assert isinstance(events[0], AllBlocksCleared)
    assert stored_tokens(events) == [prompt(0, 8)]


def test_no_room_changes_nothing() -> None:
    kv = cache(num_blocks=4)
    asked = request(prompt(0, 13))
    assert kv.allocate(asked, 13, kv.look_up(asked)) is False
    assert (asked.blocks, kv.pool.free_count, kv.take_events()) == ([], 3, [])


def test_a_hit_on_free_blocks_uses_them_up() -> None:
    """Two free blocks are hit and one is left: three more don't fit, one does."""
    kv = cache(num_blocks=4)
    first = request(prompt(0, 8))
    assert kv.allocate(first, 8)
    kv.free(first)
    second = request(prompt(0, 17))
    assert kv.allocate(second, 9, kv.look_up(second)) is False
    third = request(prompt(0, 9))
    assert kv.allocate(third, 1, kv.look_up(third)) is True


def test_look_ups_are_counted_in_tokens() -> None:
    engine = scheduler()
    run(engine, request(prompt(0, 9)))
    run(engine, request(prompt(0, 9)))
    assert (engine.cache.queried_tokens, engine.cache.hit_tokens) == (18, 8)
