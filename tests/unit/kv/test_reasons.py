"""The catalogue of reasons: explained, given by some stage, and reached by a test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.kv.reason import MEANING, Reason

ROOT = Path(__file__).parents[3]


def named_in(folder: str, *, without: Path) -> set[str]:
    def names() -> Iterator[str]:
        for file in (ROOT / folder).rglob("*.py"):
            if file.resolve() != without:
                yield from re.findall(r"Reason\.([A-Z_]+)\b", file.read_text())

    return set(names())


GIVEN = named_in("services", without=ROOT / "services/kv/reason.py")
REACHED = named_in("tests", without=Path(__file__).resolve())


@pytest.mark.parametrize("reason", Reason)
def test_is_explained_given_and_reached(reason: Reason) -> None:
    assert MEANING[reason].what
    assert MEANING[reason].mend
    assert reason.name in GIVEN, "no stage gives it: is it still a reason?"
    assert reason.name in REACHED, "no test reaches it"
