"""README's compose block, for real: images are built, services started, asked, and taken away again.

Needs a Docker engine, the images and a few minutes, so it runs only when KVROUTE_TEST_COMPOSE is set.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from services.runtime.broker_process import free_ports
from tests.docs.blocks import ROOT, blocks_of

pytestmark = [
    pytest.mark.skipif(not os.environ.get("KVROUTE_TEST_COMPOSE"), reason="set KVROUTE_TEST_COMPOSE=1 to run Docker"),
    pytest.mark.timeout(900),
]


def test_compose_block_of_the_readme() -> None:
    (block,) = [block for block in blocks_of("README.md") if block.note == "run by tests/docs/test_compose.py"]
    gateway, kafka, postgres = map(str, free_ports(3))
    environment = os.environ | {
        "COMPOSE_PROJECT_NAME": "kvroute-test",
        "GATEWAY_PORT": gateway,
        "KAFKA_PORT": kafka,
        "POSTGRES_PORT": postgres,
    }
    text = block.text.replace("127.0.0.1:8000", f"127.0.0.1:{gateway}")
    try:
        command = ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    finally:
        subprocess.run(["docker", "compose", "down", "--volumes"], cwd=ROOT, env=environment, check=False)
    assert "qwen2.5-vl" in done.stdout
    assert "(1 row)" in done.stdout
