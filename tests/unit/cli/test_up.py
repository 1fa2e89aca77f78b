"""What `kvroute up` says: its steps as they are, and what another terminal needs."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from services.cli.demo import Claims
from services.cli.steps import say_step
from services.cli.up import activation, commands_hint
from services.runtime.settings import Settings


def test_another_terminal_needs_what_differs_from_the_defaults(tmp_path):
    plain = Settings(kafka_bootstrap="127.0.0.1:9092", kafka_profile="embedded")
    assert commands_hint(plain, ". .venv/bin/activate") == [
        ". .venv/bin/activate",
        "export KVROUTE_KAFKA_BOOTSTRAP=127.0.0.1:9092 KVROUTE_KAFKA_PROFILE=embedded",
    ]
    other = plain.model_copy(update={"gateway_port": 8001, "data_dir": tmp_path / "my data"})
    (line,) = commands_hint(other, None)
    assert "KVROUTE_GATEWAY_PORT=8001" in line
    assert "KVROUTE_GATEWAY_HOST" not in line
    assert f"KVROUTE_DATA_DIR='{tmp_path}/my data'" in line


def test_a_virtual_environment_is_named_as_seen_from_here(tmp_path):
    script = tmp_path / ".venv" / "bin" / "activate"
    script.parent.mkdir(parents=True)
    script.touch()
    prefix = str(tmp_path / ".venv")
    assert activation(prefix, "/usr", tmp_path) == ". .venv/bin/activate"
    assert activation(prefix, "/usr", Path("/elsewhere")) == f". {script}"
    assert activation("/usr", "/usr", tmp_path) is None


def test_steps_are_not_painted():
    out = io.StringIO()
    say_step(Console(file=out, force_terminal=True, color_system="standard"), "starting engines: 3, qwen2.5-vl [x]")
    assert "3, qwen2.5-vl [x]" in out.getvalue()


def test_claims_are_counted():
    assert Claims([("a", True), ("b", False)]).closing == "1 of 2 hold"
