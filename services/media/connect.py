"""HTTP that stays outside: the address that was checked is the address that is connected to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from services.media.fence import Fenced, Rules, Target, check_address
from services.runtime.clock import Clock
from services.runtime.settings import Settings

_GOOD_SECONDS = 30.0
_BAD_SECONDS = 5.0
_CACHED_NAMES = 4096
_LOOKUPS = 16
_CONNECTIONS = 256


class FencedResolver(AbstractResolver):
    """Resolves names, refuses those with any forbidden address, and remembers answers for half a minute.

    A name with one public and one private address is refused whole: it is how rebinding looks. Look-ups have their
    own threads, so that a slow name server can't hold up decoding.
    """

    def __init__(self, rules: Rules, clock: Clock) -> None:
        self._rules = rules
        self._clock = clock
        self._threads = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="resolve")
        self._answers: OrderedDict[str, tuple[float, list[str] | None]] = OrderedDict()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Addresses of a host, all of them checked. Raises Fenced, or OSError when there are none."""
        return [
            ResolveResult(
                hostname=host, host=address, port=port, proto=0, flags=socket.AI_NUMERICHOST,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
            )
            for address in await self.addresses(host)
        ]  # fmt: skip

    async def addresses(self, host: str) -> list[str]:
        """The same as plain text."""
        known = self._answers.get(host)
        if known is None or known[0] <= self._clock.monotonic():
            known = await self._look_up(host)
        if known[1] is None:
            raise OSError("the host name has no address")
        for address in known[1]:
            check_address(ipaddress.ip_address(address), self._rules)
        return known[1]

    async def check(self, target: Target) -> None:
        """Apply the fence to a URL that is not fetched by us. Raises Fenced, or OSError when the name is unknown."""
        if target.address is None:
            await self.addresses(target.host)

    async def close(self) -> None:
        """Let go of the threads without waiting for a slow name server."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _look_up(self, host: str) -> tuple[float, list[str] | None]:
        loop = asyncio.get_running_loop()
        found: list[str] | None
        try:
            found = await loop.run_in_executor(self._threads, _getaddrinfo, host)
        except OSError:
            found = None
        answer = (self._clock.monotonic() + (_GOOD_SECONDS if found else _BAD_SECONDS), found or None)
        self._answers[host] = answer
        self._answers.move_to_end(host)
        while len(self._answers) > _CACHED_NAMES:
            self._answers.popitem(last=False)
        return answer


def _getaddrinfo(host: str) -> list[str]:
    """Addresses in the system's order, without scopes (those name an interface of this machine)."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]).split("%", 1)[0] for entry in found))


def rules_of(settings: Settings) -> Rules:
    """The fence as the settings draw it."""
    return Rules(settings.media_allow_private, tuple(settings.media_allow_hosts), tuple(settings.media_deny_hosts))


def open_session(settings: Settings, resolver: FencedResolver) -> aiohttp.ClientSession:
    """A client without cookies, proxies, credentials or decompression. Redirects are followed by hand."""
    connector = aiohttp.TCPConnector(
        resolver=resolver, use_dns_cache=False, limit=_CONNECTIONS, limit_per_host=settings.media_per_host
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=settings.media_fetch_seconds),
        headers={"User-Agent": "kvroute", "Accept": "*/*", "Accept-Encoding": "identity"},
        trust_env=False,
        auto_decompress=False,
    )


def refusal_in(error: BaseException) -> Fenced | None:
    """The fence's refusal behind a client error, if that is what it was."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, Fenced):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None
