"""The numbers in docs/design.md are recomputed: addresses, identities, costs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from services.kv.address import Span, addresses
from services.kv.identity import array_identity, url_identity, video_identity
from services.router.cost import cost_terms
from services.router.policies import POLICIES
from services.router.situation import Parameters, Prompt, SlotView
from services.router.slots import Overlap, SlotEpoch

DESIGN = (Path(__file__).parents[3] / "docs" / "design.md").read_text("utf-8")
TOKENS = list(range(1, 65))


def row(start: str) -> list[str]:
    """The cells of the table row that begins with a text."""
    (line,) = re.findall(rf"^\| {re.escape(start)} \|(.*)\|$", DESIGN, flags=re.MULTILINE)
    return [cell.strip() for cell in line.split("|")]


@pytest.mark.parametrize(
    ("case", "found"),
    [
        ("plain", addresses(TOKENS, 16)),
        ("lora `adapter-a`", addresses(TOKENS, 16, lora="adapter-a")),
        ("salt `tenant-a`", addresses(TOKENS, 16, cache_salt="tenant-a")),
        (
            "block 1 overlaps `deadbeef`, block 2 overlaps 9 then 5",
            addresses(TOKENS, 16, [Span(16, 16, 0xDEADBEEF), Span(32, 8, 9), Span(40, 8, 5)]),
        ),
    ],
)
def test_addresses(case: str, found: list[int]) -> None:
    (cell,) = row(case)
    assert re.findall(r"`([0-9a-f]{16})`", cell) == [f"{address:016x}" for address in found]


@pytest.mark.parametrize(
    ("medium", "found"),
    [
        ("url `https://example.com/a.png`", url_identity("https://example.com/a.png")),
        ("url `https://example.com/a.png?v=2`", url_identity("https://example.com/a.png?v=2")),
        ("url `data:image/png;base64,AAAA`", url_identity("data:image/png;base64,AAAA")),
        ("content [1,2,3], bytes 0 to 5", array_identity((1, 2, 3), bytes(range(6)))),
        ("content [6,4,3], bytes 0 to 71", array_identity((6, 4, 3), bytes(range(72)))),
        ("content [4,6,3], bytes 0 to 71", array_identity((4, 6, 3), bytes(range(72)))),
        (
            "video T=2 H=W=1, bytes 0 to 5, fps 25.0, duration 2.0, timestamps [0.0,1.96]",
            video_identity(
                2, 1, 1, bytes(range(6)), source_fps=25.0, source_duration=2.0, sampled_timestamps=[0.0, 1.96]
            ),
        ),
    ],
)
def test_identities(medium: str, found: int) -> None:
    assert row(medium) == [f"`{found:016x}`"]


@pytest.mark.parametrize(("tokens", "block_size", "device"), [(128, 16, 4), (64, 16, 0)])
def test_costs(tokens: int, block_size: int, device: int) -> None:
    prompt = Prompt("/r", 1, "m", tokens, {block_size: range(tokens // block_size)})
    slot = SlotView(SlotEpoch("w", 0, 1), "m", block_size, overlap=Overlap(device))
    cost = cost_terms(prompt, [slot], Parameters())[0].cost
    assert row(f"{tokens} tokens") == [str(block_size), str(device), "idle", str(cost)]


def test_every_policy_is_named() -> None:
    assert set(re.findall(r"`(\w+)`", DESIGN.split("Other policies:")[1].split("**Choice.**")[0])) | {"kv"} == set(
        POLICIES
    )
