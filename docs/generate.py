"""Writes the generated pages of docs/ from the catalogues in code: settings, topics, messages, metrics, reasons.

``python -m docs.generate`` writes them, ``--check`` says which differ and fails: generated pages are never edited.
"""

from __future__ import annotations

import sys
from pathlib import Path

from docs import models_page, pages

HERE = Path(__file__).parent


def generated() -> dict[Path, str]:
    """Every generated page's path and content."""
    return {
        HERE / "configuration.md": pages.configuration(),
        HERE / "topics.md": pages.topics(),
        HERE / "messages.md": pages.messages(),
        HERE / "metrics.md": pages.metrics(),
        HERE / "reasons.md": pages.reasons(),
        HERE / "models.md": models_page.models(),
        HERE / "audit-tables.md": pages.audit_tables(),
    }


def stale() -> list[Path]:
    """Pages that are missing or differ from the code."""
    return [path for path, text in generated().items() if not path.is_file() or path.read_text("utf-8") != text]


def main(arguments: list[str]) -> int:
    """Write or check the pages; the exit code."""
    if "--check" in arguments:
        for path in stale():
            print(f"{path.relative_to(HERE.parent)} differs from the code: run `make docs`", file=sys.stderr)
        return 1 if stale() else 0
    pages_now = generated()
    for path in stale():
        path.write_text(pages_now[path], "utf-8")
        print(f"wrote {path.relative_to(HERE.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
