"""``python -m tests.fuzz``: damaged files by the thousand. Exit code 1 when one of them did what none may."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.fuzz.campaign import run


def main() -> int:
    """Run the campaigns and print what became of the files."""
    arguments = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    arguments.add_argument("--images", type=int, default=50_000)
    arguments.add_argument("--videos", type=int, default=2_000)
    arguments.add_argument("--first", type=int, default=0, help="first seed")
    given = arguments.parse_args()
    failed = False
    for kind in ("images", "videos"):
        found = asyncio.run(run(kind, getattr(given, kind), say=_progress, first=given.first))
        told = ", ".join(f"{name} {count}" for name, count in found.outcomes.most_common())
        print(f"\r{kind}: {told}; slowest {found.slowest:.2f} s, memory grew by {found.growth >> 20} MiB")
        for problem in found.problems():
            failed = True
            print(f"  PROBLEM {problem}")
    return 1 if failed else 0


def _progress(part: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{part}   ")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
