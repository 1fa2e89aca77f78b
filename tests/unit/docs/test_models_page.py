"""The page of models is the registry: every family and medium once, with what it was checked against."""

from __future__ import annotations

from docs.models_page import models
from services.layout.families.generations import GENERATIONS
from services.layout.families.registry import ENTRIES
from services.layout.families.support import ENGINES


def test_every_family_has_a_row_for_images_and_one_for_videos() -> None:
    rows = [line for line in models().splitlines() if "| images |" in line or "| videos |" in line]
    assert len(rows) == 2 * len(ENTRIES)
    for entry, images, videos in zip(ENTRIES, rows[::2], rows[1::2], strict=True):
        assert images.startswith(f"| {entry.title} (`{entry.model_types[0]}`")
        for row, coverage in ((images, entry.image), (videos, entry.video)):
            assert f"| {'yes' if coverage.exact else 'no'} | {coverage.condition} |" in row
            assert all(f"`{name}`" in row for name in (*coverage.reasons, *coverage.checked_against))


def test_engines_and_variants_are_listed() -> None:
    page = models()
    assert all(f"| {row.title} | " in page for row in ENGINES.values())
    assert all(f"| `{generation.name}` | " in page for generation in GENERATIONS)
