"""Ports a process listens on: asked for before anything is started, and said in one line when they can't be had."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from typing import Any

from services.runtime.errors import ConfigError

_ADDRESS_ERRORS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class CannotListen(ConfigError):
    """A port is taken, forbidden, or the address is none of this machine's."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Who listens where, and how another place is chosen: the end of the error's sentence."""

    who: str
    host: str
    port: int
    mend: str

    def error(self, error: OSError) -> CannotListen:
        """The error in one line: who, where, why, and how to mend it."""
        resolved = not isinstance(error, socket.gaierror) and error.errno not in _ADDRESS_ERRORS
        # Servers put the address and words of their own around the system's.
        cause = os.strerror(error.errno) if resolved and error.errno else error.strerror or str(error)
        mend = self.mend if resolved else f"{self.host} is no address of this machine"
        return CannotListen(f"{self.who} can't listen on {_joined(self.host, self.port)} ({cause}): {mend}")

    def check(self) -> None:
        """Raise CannotListen when nobody could listen there now. Port 0 is any port and always free."""
        if not self.port:
            return
        try:
            found = socket.getaddrinfo(self.host or None, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise self.error(error) from None
        bound, absent = False, None
        for family, kind, protocol, _, address in found:
            try:
                _bind(family, kind, protocol, address)
                bound = True
            except OSError as error:
                if error.errno not in _ADDRESS_ERRORS:
                    raise self.error(error) from None
                # `localhost` names ::1 too, also where there is no IPv6.
                absent = error
        if absent is not None and not bound:
            raise self.error(absent)


def gateway_place(host: str, port: int) -> Listening:
    """Where the gateway listens."""
    return Listening("the gateway", host, port, "set KVROUTE_GATEWAY_PORT to a free port")


def health_place(host: str, port: int) -> Listening:
    """Where a stage answers /healthz."""
    return Listening("the health server", host, port, "set KVROUTE_HEALTH_PORT to a free port, or to 0 for none")


def _bind(family: int, kind: int, protocol: int, address: Any) -> None:
    with socket.socket(family, kind, protocol) as sock:
        # As servers do: what is left of closed connections is no hindrance, a listener is.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        # A bind may be shared among those that allow it, listening is not.
        sock.listen(1)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
