"""The fenced code blocks of a Markdown page, with the comment that says how a test treats them.

``<!-- test: background, until "TEXT" -->``   started, left running until the page ends
``<!-- test: run by PATH -->``                another test runs it
``<!-- test: not run, REASON -->``            nothing runs it
No comment: it is run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/quickstart.md")
RUNNABLE = {"sh", "python"}

_FENCE = re.compile(r"(?:^<!-- test: (?P<note>.+?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """One block: what language, what it says, where it stands, what its comment says."""

    page: str
    line: int
    language: str
    text: str
    note: str

    @property
    def where(self) -> str:
        """For messages: ``README.md:12``."""
        return f"{self.page}:{self.line}"

    @property
    def until(self) -> str | None:
        """The text a background block prints when it is ready."""
        found = re.fullmatch(r'background, until "(.+)"', self.note)
        return found[1] if found else None


def blocks_of(page: str) -> list[Block]:
    """A page's blocks, top to bottom."""
    text = (ROOT / page).read_text("utf-8")
    return [
        Block(page, text.count("\n", 0, found.start("text")), found["language"], found["text"], found["note"] or "")
        for found in _FENCE.finditer(text)
    ]
