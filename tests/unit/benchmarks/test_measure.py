"""The benchmarks' arithmetic: medians, ratios, quantiles, the shape of the load."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.hashing import plain_loop
from benchmarks.load import CONVERSATIONS, prompts
from benchmarks.measure import Row, Spread, alternate, microseconds_of, quantile
from benchmarks.processes import Child
from benchmarks.report import BEGIN, END, into_page, markdown, number
from services.kv.address import addresses


def test_spread_is_median_and_range() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        Spread.of([])
    with pytest.raises(ValueError, match="nothing was measured"):
        quantile([], 0.5)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 51), (0.99, 100), (1.0, 100)])
def test_quantile_is_a_measured_value(share: float, expected: int) -> None:
    assert quantile(list(range(100, 0, -1)), share) == expected


def test_both_sides_alternate_and_the_first_turn_is_warm_up() -> None:
    order: list[str] = []
    ours, floor = iter([99.0, 1.0, 2.0, 3.0]), iter([88.0, 10.0, 20.0, 30.0])
    value, baseline = alternate(
        lambda: order.append("ours") or next(ours), lambda: order.append("floor") or next(floor), runs=3
    )
    assert order == ["ours", "floor"] * 4
    assert value == Spread(2.0, 1.0, 3.0, 3)
    assert baseline == Spread(20.0, 10.0, 30.0, 3)
    assert Row("case", "ms", value, baseline).ratio == pytest.approx(0.1)
    assert Row("case", "ms", value).ratio is None


def test_a_call_is_made_at_least_once_and_not_for_ever() -> None:
    calls = Counter[str]()
    assert microseconds_of(lambda: calls.update(["call"]), at_least=3600, most=7) > 0
    assert calls["call"] == 7


def test_prompts_share_long_beginnings_and_end_apart() -> None:
    chats = list(prompts(2048, 200, seed=1))
    assert len({chat[0]["content"] for chat in chats}) == CONVERSATIONS
    assert len({chat[1]["content"] for chat in chats}) == 200
    assert {len(chat[0]["content"].split()) + len(chat[1]["content"].split()) for chat in chats} == {2048}
    assert list(prompts(2048, 200, seed=1)) == chats


def test_the_hashing_floor_hashes_every_block() -> None:
    tokens = list(range(1000))
    assert len(plain_loop(tokens)) == len(addresses(tokens, 16)) == 62
    assert plain_loop(tokens)[0] == addresses(tokens, 16)[0]


@pytest.mark.parametrize(("value", "text"), [(1234567.8, "1,234,568"), (12.3, "12.3"), (0.04567, "0.0457"), (0.0, "0")])
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_results_go_into_a_page_between_its_markers() -> None:
    row = Row("match", "µs", Spread.of([30.0, 31.0, 35.0]), Spread.of([62.0]), "walk")
    page = into_page(f"# Page\n\n{BEGIN}\nold\n{END}\n\nafter\n", [markdown("Index", [row])], {"cores": 2})
    assert "old" not in page
    assert "Measured on: cores 2." in page
    assert "| match | 31 | 30 to 35 | µs | 62 (walk) | 0.50 |" in page
    assert page.startswith("# Page\n\n")
    assert page.endswith(f"{END}\n\nafter\n")
    assert into_page(page, [], {}).count(BEGIN) == 1


def test_a_page_without_markers_is_not_touched() -> None:
    with pytest.raises(ValueError, match="no <!-- bench"):
        into_page("# Page\n", [], {})


WORKS_THEN_WAITS = "import time; sum(range(5_000_000)); print('up', flush=True); time.sleep(600)"


async def test_a_child_is_waited_for_measured_and_ended() -> None:
    child = await Child.start("child", [sys.executable, "-c", WORKS_THEN_WAITS])
    await child.line_with("up")
    assert child.cpu_seconds() > 0
    await child.stop()
    assert child.cpu_seconds() == 0


async def test_a_child_that_ends_too_early_shows_its_last_words() -> None:
    child = await Child.start("child", [sys.executable, "-c", "raise SystemExit('no such model')"])
    with pytest.raises(RuntimeError, match="no such model"):
        await child.line_with("up")
    await child.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death is Linux's")
async def test_a_child_ends_with_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    bench = await Child.start("bench", [sys.executable, "-c", STARTS_A_CHILD, str(pid_file)])
    await bench.line_with("started")
    grandchild = int(pid_file.read_text())
    await bench.kill()
    for _ in range(200):
        if not is_running(grandchild):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"process {grandchild} goes on without its parent")


STARTS_A_CHILD = """
import asyncio, pathlib, sys
from benchmarks.processes import Child

async def main():
    child = await Child.start("child", [sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path(sys.argv[1]).write_text(str(child.pid))
    print("started", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def is_running(pid: int) -> bool:
    """Whether a process is there and not just waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
