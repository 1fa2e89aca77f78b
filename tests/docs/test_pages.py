"""Every command in README and quickstart is run, in order, against the pipeline they start."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT, RUNNABLE, Block, blocks_of
from tests.docs.walkthrough import Walkthrough


@pytest.fixture
def walkthrough(tmp_path: Path) -> Iterator[Walkthrough]:
    walk = Walkthrough(tmp_path)
    try:
        yield walk
    finally:
        walk.close()


def walk_through(page: str, walkthrough: Walkthrough) -> dict[int, str]:
    """Run a page's blocks; what each printed, by line."""
    if missing := [tool for tool in ("bash", "curl", "make") if shutil.which(tool) is None]:
        pytest.skip(f"the page's commands need {', '.join(missing)}")
    return {block.line: walkthrough.run(block) for block in blocks_of(page) if is_run(block)}


def is_run(block: Block) -> bool:
    """Whether a walk through the page runs it."""
    return block.language in RUNNABLE and (not block.note or block.until is not None)


def printed_by(page: str, outputs: dict[int, str], text: str) -> str:
    """What the one block holding a text printed."""
    (line,) = [block.line for block in blocks_of(page) if is_run(block) and text in block.text]
    return outputs[line]


@pytest.mark.timeout(300)
def test_readme(walkthrough: Walkthrough) -> None:
    outputs = walk_through("README.md", walkthrough)
    answers = printed_by("README.md", outputs, "lamp-1").replace("}{", "}\n{").splitlines()
    first, second = (json.loads(answer)["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers)
    assert second > first
    assert "lamp-2" in printed_by("README.md", outputs, "kvroute explain")
    assert re.search(r"w\d", printed_by("README.md", outputs, "import asyncio"))
    assert "lamp-1" in printed_by("README.md", outputs, "sqlite3")


@pytest.mark.timeout(300)
def test_quickstart(walkthrough: Walkthrough) -> None:
    page = "docs/quickstart.md"
    outputs = walk_through(page, walkthrough)
    assert "w3" in printed_by(page, outputs, "kvroute worker list")
    assert "[DONE]" in printed_by(page, outputs, '"stream": true')
    assert "second" in printed_by(page, outputs, "kvroute explain")
    assert "kvroute.requests.v1" in printed_by(page, outputs, "kvroute topics list")


@pytest.mark.parametrize("block", [block for page in PAGES for block in blocks_of(page)], ids=lambda block: block.where)
def test_every_block_is_run_or_says_why_not(block: Block) -> None:
    assert block.language, f"{block.where} names no language"
    if is_run(block):
        return
    if found := re.fullmatch(r"run by (\S+)", block.note):
        assert (ROOT / found[1]).exists(), f"{block.where}: {found[1]} is not there"
    else:
        assert re.fullmatch(r"not run, \w.+", block.note), f"{block.where} is not run and does not say why"


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page} links to {target}"
