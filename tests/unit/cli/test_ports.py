"""Ports that are taken are found before anything starts, and end a command as wrong configuration, in one line."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli import exits
from services.cli.local_stack import LocalStack, StackPlan
from services.runtime.listening import CannotListen
from services.runtime.settings import Settings

MODEL = str(Path(__file__).parents[2] / "models/qwen2.5-vl")


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


@pytest.mark.parametrize("command", [("up",), ("run", "gateway")], ids=" ".join)
def test_the_gateways_port(kvroute, monkeypatch, tmp_path, taken, command):
    monkeypatch.setenv("KVROUTE_GATEWAY_PORT", str(taken))
    ran = kvroute(*command, *(["--kafka-port", "0"] if command == ("up",) else []))
    said = [line for line in ran.err.splitlines() if line.startswith("kvroute:")]
    assert said == [
        f"kvroute: the gateway can't listen on 127.0.0.1:{taken} (Address already in use): "
        "set KVROUTE_GATEWAY_PORT to a free port"
    ]
    assert (ran.code, "Traceback" in ran.err) == (exits.USAGE, False)
    assert not (tmp_path / ".kvroute").exists(), "nothing was begun"


def test_the_brokers_port(kvroute, taken):
    ran = kvroute("up", "--kafka-port", str(taken))
    assert ran.code == exits.USAGE
    assert 'with --kafka-port (`make up ARGS="--kafka-port 9192"`); is another `make up` running?' in ran.err


def test_a_simulated_engines_ports(kvroute, taken):
    ran = kvroute("sim", "--model", MODEL, "--port", str(taken))
    assert (ran.code, "choose a free port with --port" in ran.err) == (exits.USAGE, True)
    ran = kvroute("sim", "--model", MODEL, "--port", "0", "--events", f"tcp://*:{taken}")
    assert (ran.code, "--events and --replay" in ran.err) == (exits.USAGE, True)


async def test_any_port_is_nobodys_choice(taken):
    stack = LocalStack(Settings(gateway_port=taken), StackPlan())
    assert [place.port for place in stack.places()] == [taken]
    with pytest.raises(CannotListen):
        await stack.start()


def test_a_port_that_is_none(kvroute, monkeypatch):
    monkeypatch.setenv("KVROUTE_GATEWAY_PORT", "65536")
    assert kvroute("config").code == exits.USAGE
