"""``make demo``, the first thing a newcomer runs: it says that every claim holds, and its exit code says so too."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(240)
def test_every_claim_holds() -> None:
    ran = subprocess.run(
        ["make", "--no-print-directory", "demo", "ARGS=--json"], cwd=ROOT, capture_output=True, text=True, timeout=230
    )
    assert ran.returncode == 0, ran.stderr[-3000:] + ran.stdout[-3000:]
    said = json.loads(ran.stdout)
    assert said["all_hold"]
    assert {claim["holds"] for claim in said["claims"]} == {True}
    assert all(row["predicted_tokens"] == row["realised_tokens"] for row in said["requests"])
