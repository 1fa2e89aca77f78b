"""The inner rules against tables of the reference: tiles, grids, budgets, frame sizes, pruning, timestamps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.layout.families.kimi_k25 import KimiK25
from services.layout.families.llama4 import Canvases, Llama4, canvases
from services.layout.families.llava_next import LlavaNext, best_resolution
from services.layout.families.nemotron import Nemotron
from services.layout.families.nemotron_images import ImageBudget
from services.layout.families.nemotron_videos import frame_grid, frame_seconds
from services.layout.families.pruning import kept_tokens
from services.layout.families.tiles import arrangements, tiles_of
from tests.unit.layout.families.reading import family_of
from tests.unit.layout.golden import golden

BUDGET = ImageBudget(patch=16, fewest=1024, most=13312)


def test_llava_next_picks_a_resolution_and_counts() -> None:
    family = family_of("llava_next")
    assert isinstance(family, LlavaNext)
    for height, width, tall, wide, tokens in golden("bulk_llava_next")["rows"]:
        assert best_resolution(height, width, family.pinpoints) == (tall, wide), (height, width)
        assert family.expand_image(height, width).vision_tokens == tokens, (height, width)


def test_llama_4_canvases_come_in_the_references_order() -> None:
    listed = golden("llama4_image")["supported_resolutions_hw_in_order"]
    assert [[336 * rows, 336 * columns] for rows, columns in canvases(16)[::2]] == listed  # every second one is listed


def test_llama_4_picks_a_canvas() -> None:
    family = family_of("llama4")
    assert isinstance(family, Llama4)
    for height, width, rows, columns in golden("bulk_llama4")["rows"]:
        assert family.canvas.best(height, width) == (rows, columns), (height, width)


def test_llama_4_may_be_set_to_take_the_largest_canvas() -> None:
    largest = Canvases(16, 336, to_max_canvas=True)
    for height, width, rows, columns in golden("bulk_llama4")["rows_resize_to_max_canvas"]:
        assert largest.best(height, width) == (rows, columns), (height, width)


def test_kimi_shrinks_and_pads() -> None:
    family = family_of("kimi_k25")
    assert isinstance(family, KimiK25)
    for height, width, tall, wide, rows, columns, tokens in golden("bulk_kimi_k25")["rows"]:
        assert family.limits.resized(height, width) == (tall, wide), (height, width)
        assert family.limits.tokens(height, width) == tokens == rows * columns // 4, (height, width)


def test_nemotron_sizes_an_image() -> None:
    for height, width, rows, columns, tokens in golden("bulk_nemotron")["image"]["rows"]:
        assert BUDGET.grids([(height, width)], 131072) == [(rows, columns)], (height, width)
        assert rows * columns // 4 == tokens


@pytest.mark.parametrize("where", ["bulk", "cases"])
def test_nemotron_shrinks_images_together(where: str) -> None:
    rows = golden("bulk_nemotron")["image_budget"]["rows"] if where == "bulk" else [
        (case["max_model_len"], case["text_prompt_length"], case["sizes_hw"], case["num_image_tokens"])
        for case in golden("nemotron_nano_omni_image")["budget_cases"]
    ]  # fmt: skip
    for length, text, sizes, tokens in rows:
        grids = BUDGET.grids([tuple(size) for size in sizes], length, text)
        assert [tall * wide // 4 for tall, wide in grids] == tokens, (length, text, sizes)


def test_nemotron_grids_of_the_budget_cases() -> None:
    for case in golden("nemotron_nano_omni_image")["budget_cases"]:
        sizes = [tuple(size) for size in case["sizes_hw"]]
        grids = BUDGET.grids(sizes, case["max_model_len"], case["text_prompt_length"])
        assert [list(grid) for grid in grids] == case["patch_grids_hw"], case


def test_nemotron_sizes_frames() -> None:
    for height, width, target, keeps, tall, wide, tokens in golden("bulk_nemotron")["video_resize"]["rows"]:
        rows, columns = frame_grid(height, width, target, keep_aspect=keeps)
        assert (16 * rows, 16 * columns, rows * columns // 4) == (tall, wide, tokens), (height, width, target)


def test_pruning_keeps_so_many() -> None:
    for per_group, groups, rate, kept in golden("bulk_nemotron")["evs"]["rows"]:
        assert kept_tokens(per_group, groups, rate) == kept, (per_group, groups, rate)


def test_nemotron_stamps_in_whole_milliseconds() -> None:
    for fps, index, milliseconds, seconds, text in golden("bulk_nemotron")["timestamps"]["rows"]:
        (found,) = frame_seconds([index], fps)
        assert found == seconds == index * milliseconds / 1000, (fps, index)
        assert f"{found:.2f}" == text


def test_older_nemotrons_cut_tiles() -> None:
    data = golden("nemotron_nano_v2_vl_static_tiles_image")
    for case in data["cases"]:
        tiles = tiles_of(case["h"], case["w"], 512, 12, thumbnail=True)
        assert (tiles, 256 * tiles) == (case["num_tiles_incl_thumbnail"], case["num_image_tokens"]), case
    listed = {tuple(one) for one in data["target_ratios_wh_in_reference_order"]}
    assert listed <= set(arrangements(12))


def test_an_older_checkpoint_lays_its_tiles_out_in_one_run(static_tiles: Nemotron) -> None:
    for case in golden("nemotron_nano_v2_vl_static_tiles_image")["cases"]:
        assert static_tiles.image_tokens(case["h"], case["w"]) == case["num_image_tokens"]


@pytest.fixture
def static_tiles() -> Nemotron:
    """A checkpoint without ``min_num_patches``."""
    family = family_of("nemotron_nano_omni")
    assert isinstance(family, Nemotron)
    return replace(family, budget=None)
