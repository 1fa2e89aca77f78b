"""What may be fetched: public http(s) servers, and nothing inside. Pure rules; fenced_resolver.py applies them.

Two checks keep requests out of private networks: the URL's own spelling (here), and every address its host resolves
to (here), which is then the address that is connected to. Each redirect hop passes both again.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from services.runtime.errors import Refused

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_FORBIDDEN_V4 = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "carrier-grade NAT",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local, cloud metadata",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "protocol assignments",
    "192.0.2.0/24": "documentation",
    "192.88.99.0/24": "6to4 relay",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "benchmarking",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved, broadcast",
}
_FORBIDDEN_V6 = {
    "2001::/23": "protocol assignments, Teredo",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4",
    "3fff::/20": "documentation",
}
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_TRANSLATED_V6 = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
_V4 = tuple((ipaddress.IPv4Network(network), why) for network, why in _FORBIDDEN_V4.items())
_V6 = tuple((ipaddress.IPv6Network(network), why) for network, why in _FORBIDDEN_V6.items())

_INSIDE_NAMES = ("localhost", "local", "internal", "intranet", "home.arpa", "lan", "corp")
# The Fetch standard's list of ports no browser connects to: other protocols listen there.
_BAD_PORTS = frozenset({
    0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109,
    110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515, 526, 530, 531,
    532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060,
    5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080,
})  # fmt: skip
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_][a-z0-9_-]{0,62})*")
_BRACKETED = re.compile(r"\[[0-9a-fA-F:.]+\](:[0-9]*)?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Fenced(Refused):
    """A URL that must not be fetched, by us or by an engine: the request ends with 400. Names no path or query."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message, code="forbidden_url")


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator allows."""

    allow_private: bool = False
    allow_hosts: tuple[str, ...] = ()
    deny_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads. ``address`` is set when the host is an address already."""

    scheme: str
    host: str
    port: int
    path: str
    address: IPAddress | None = None


def check_url(url: str, rules: Rules) -> Target:
    """Check a URL's spelling, scheme, host and port. Raises Fenced.

    Spellings that programs read differently (numbers as hosts, user info, backslashes, spaces) are refused, whatever
    they would lead to: the engine may read them its own way.
    """
    if any(character <= " " or character in "\\\x7f" for character in url):
        raise Fenced("a media URL contains spaces, control characters or backslashes")
    scheme = url.split(":", 1)[0].lower() if ":" in url else ""
    if scheme not in ("http", "https"):
        raise Fenced(f"a media URL has the scheme {_scheme_shown(scheme)}, expected http, https or data")
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError:
        raise Fenced("a media URL has a malformed host or port") from None
    if "@" in split.netloc:
        raise Fenced("a media URL carries a user name or password")
    bracketed = split.netloc.startswith("[")
    if bracketed and not _BRACKETED.fullmatch(split.netloc):
        raise Fenced("a media URL has a malformed IPv6 address")
    if port is None:
        port = 443 if scheme == "https" else 80
    if port in _BAD_PORTS:
        raise Fenced(f"a media URL names port {port}, where other protocols listen")
    host = (split.hostname or "").removesuffix(".")
    address = _address_of(host, bracketed=bracketed)
    if address is None:
        host = _checked_name(host, rules)
    else:
        check_address(address, rules)
    _check_lists(host, rules)
    return Target(scheme, host, port, split.path, address)


def check_address(address: IPAddress, rules: Rules) -> None:
    """Check one resolved address. Raises Fenced."""
    why = None if rules.allow_private else forbidden(address)
    if why:
        raise Fenced(f"a media URL leads to {address} ({why}): only public addresses are fetched")


def forbidden(address: IPAddress) -> str | None:
    """Why an address is not a public server's, or None if it is one."""
    if isinstance(address, ipaddress.IPv4Address):
        return next((why for network, why in _V4 if address in network), None)
    if any(address in network for network in _TRANSLATED_V6):
        return forbidden(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address not in _GLOBAL_V6:
        return "not global unicast"
    return next((why for network, why in _V6 if address in network), None)


def matches(host: str, entries: Iterable[str]) -> bool:
    """Whether a host is in a list: ``example.com`` is that host, ``.example.com`` or ``*.example.com`` all below it."""
    for entry in entries:
        wanted = entry.strip().lower().removesuffix(".").removeprefix("*")
        if host == wanted or (wanted.startswith(".") and host.endswith(wanted)):
            return True
    return False


def _address_of(host: str, *, bracketed: bool) -> IPAddress | None:
    if bracketed:
        try:
            return ipaddress.IPv6Address(host)
        except ValueError:
            raise Fenced("a media URL has a malformed IPv6 address") from None
    if not _NUMBER.fullmatch(host.rsplit(".", 1)[-1]):
        return None
    # Ends in a number, so every program that follows the URL standard takes it for an IPv4 address.
    try:
        return ipaddress.IPv4Address(host)
    except ValueError:
        raise Fenced("a media URL spells an IPv4 address in an unusual form, expected a.b.c.d in decimal") from None


def _checked_name(host: str, rules: Rules) -> str:
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii").lower()
        except UnicodeError:
            raise Fenced("a media URL has a host name that is no valid international name") from None
        if _address_of(host, bracketed=False) is not None:
            raise Fenced("a media URL spells an address in non-ASCII digits")
    if not _HOST.fullmatch(host) or len(host) > 253:
        raise Fenced("a media URL has no valid host name")
    inside = "." not in host or any(host == name or host.endswith(f".{name}") for name in _INSIDE_NAMES)
    if inside and not rules.allow_private:
        raise Fenced("a media URL names a host that only exists inside a network")
    return host


def _check_lists(host: str, rules: Rules) -> None:
    if matches(host, rules.deny_hosts):
        raise Fenced("a media URL names a host on KVROUTE_MEDIA_DENY_HOSTS")
    if rules.allow_hosts and not matches(host, rules.allow_hosts):
        raise Fenced("a media URL names a host that is not on KVROUTE_MEDIA_ALLOW_HOSTS")


def _scheme_shown(scheme: str) -> str:
    return scheme if re.fullmatch(r"[a-z][a-z0-9+.-]{0,15}", scheme) else "none"
