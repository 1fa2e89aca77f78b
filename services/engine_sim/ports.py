"""Finds ports that are free, one after another, for ranks that publish on neighbouring ports."""

from __future__ import annotations

import random
import socket

_LOWEST, _HIGHEST = 20_000, 31_999


def free_run(host: str, count: int, tries: int = 200) -> int:
    """The first of ``count`` neighbouring TCP ports that are free now, below the system's ephemeral range.

    Raises OSError when none were found.
    """
    # Unseeded: engines that start at once must not try the same ports in the same order.
    generator = random.Random()
    for _ in range(tries):
        first = generator.randint(_LOWEST, _HIGHEST - count)
        if all(_is_free(host, port) for port in range(first, first + count)):
            return first
    raise OSError(f"no {count} neighbouring free ports on {host} in {tries} tries: name zmq_port")


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("" if host in ("*", "0.0.0.0") else host, port))
        except OSError:
            return False
    return True
