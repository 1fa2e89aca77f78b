"""Ports that can't be had are said in one line: who, where, why, and how to choose another."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from services.runtime.errors import ConfigError
from services.runtime.health import HealthServer
from services.runtime.listening import CannotListen, Listening, gateway_place, health_place


@pytest.fixture
def taken() -> Iterator[int]:
    """A port somebody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


def test_a_taken_port_names_the_setting(taken: int) -> None:
    with pytest.raises(CannotListen) as error:
        gateway_place("127.0.0.1", taken).check()
    assert str(error.value) == (
        f"the gateway can't listen on 127.0.0.1:{taken} (Address already in use): "
        "set KVROUTE_GATEWAY_PORT to a free port"
    )
    assert isinstance(error.value, ConfigError)


def test_every_address_of_a_name_is_asked_for(taken: int) -> None:
    for host in ("localhost", "0.0.0.0"):
        with pytest.raises(CannotListen, match="Address already in use"):
            Listening("it", host, taken, "elsewhere").check()


def test_free_ports_and_any_port_pass_and_are_not_kept(taken: int) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        free = sock.getsockname()[1]
    for _ in range(2):
        Listening("it", "127.0.0.1", free, "elsewhere").check()
        Listening("it", "localhost", free, "elsewhere").check()
    Listening("it", "nowhere.invalid", 0, "elsewhere").check()


def test_an_address_that_is_not_here_is_told_apart_from_a_port() -> None:
    with pytest.raises(CannotListen, match=r"192\.0\.2\.1 is no address of this machine"):
        gateway_place("192.0.2.1", 1).check()


def test_servers_words_are_left_out() -> None:
    raised = OSError(errno.EADDRINUSE, "error while attempting to bind on address ('::1', 1): address already in use")
    assert str(health_place("::1", 1).error(raised)) == (
        "the health server can't listen on [::1]:1 (Address already in use): "
        "set KVROUTE_HEALTH_PORT to a free port, or to 0 for none"
    )


async def test_the_health_server_says_so_itself(taken: int) -> None:
    server = HealthServer("127.0.0.1", taken, sick=list, unready=list)
    with pytest.raises(CannotListen, match="KVROUTE_HEALTH_PORT"):
        await server.start()
    await server.stop()
