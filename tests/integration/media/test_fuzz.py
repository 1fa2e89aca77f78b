"""A fiftieth of ``make fuzz``: damaged files give an identity or a reason, nothing else."""

from __future__ import annotations

import pytest

from tests.fuzz.campaign import run


@pytest.mark.parametrize(("kind", "count"), [("images", 1000), ("videos", 40)])
async def test_damaged_files_have_an_identity_or_a_reason(kind: str, count: int) -> None:
    found = await run(kind, count)
    assert found.problems() == []
    assert found.outcomes["identity"] > 0
    assert found.outcomes["decode_failed"] > 0
    assert sum(found.outcomes.values()) == count
