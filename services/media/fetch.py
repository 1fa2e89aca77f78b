"""Fetches media over HTTP: fenced at every hop, bounded in bytes, seconds and redirects."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urljoin

import aiohttp
import yarl

from services.kv.reason import Reason
from services.media.connect import FencedResolver, refusal_in
from services.media.fence import Fenced, Rules, check_url
from services.media.header import ImageSize, Need, measure
from services.media.memory import Hold, MemoryBudget
from services.media.unusable import Unusable
from services.runtime.metrics import MEDIA_FETCHED_BYTES, MEDIA_FETCHES
from services.runtime.offload import run_in_thread
from services.runtime.settings import Settings

HEAD_STEPS = (4 << 10, 32 << 10, 128 << 10, 512 << 10)
"""Bytes read before the size is tried again; above the last the whole image is fetched."""

TAIL_BYTES = (64 << 10) + 64
_CHUNK = 64 << 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_TYPE = re.compile(r"[a-z0-9.+-]{1,64}/[a-z0-9.+-]{1,64}")
_MAX_AGE = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?(\d{1,9})")
_NONE: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Validators:
    """What a server says of the version it served."""

    etag: str = ""
    last_modified: str = ""
    length: int | None = None

    def __bool__(self) -> bool:
        """Whether it said anything."""
        return bool(self.etag or self.last_modified or self.length is not None)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A whole medium; ``data`` is None when the server says that what was known is unchanged.

    ``max_age``: seconds for which the server wants no more questions. ``may_keep``: it does not forbid remembering.
    """

    data: bytes | None
    content_type: str
    validators: Validators
    max_age: float = 0.0
    may_keep: bool = True


@dataclass(frozen=True, slots=True)
class Measured:
    """An image's size, from as few bytes as were needed."""

    size: ImageSize
    size_bytes: int | None
    validators: Validators


class Fetcher:
    """Fetches. Raises Fenced (the request ends with 400) or Unusable (the item is not exact), nothing else."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        resolver: FencedResolver,
        rules: Rules,
        settings: Settings,
        budget: MemoryBudget,
    ) -> None:
        self._session = session
        self._resolver = resolver
        self._rules = rules
        self._max_bytes = settings.media_max_bytes
        self._max_redirects = settings.media_max_redirects
        self._seconds = settings.media_fetch_seconds
        self._budget = budget

    async def check(self, url: str) -> None:
        """Apply the fence to a URL that the engine will fetch."""
        async with self._bounded("check"):
            await self._resolver.check(check_url(url, self._rules))

    async def whole(self, url: str, hold: Hold, known: Validators | None = None) -> Fetched:
        """All bytes of a medium; ``hold`` counts them. ``known``: of the version we have, which need not come again."""
        async with self._bounded("whole"), self._get(url, _conditions(known)) as response:
            if known is not None and response.status == 304:
                return Fetched(None, "", known, *_keeping(response))
            if response.status != 200:
                raise _bad_status(response.status)
            data, validators = await self._read_whole(response, hold, b"")
            return Fetched(data, _content_type(response), validators, *_keeping(response))

    async def size(self, url: str) -> Measured:
        """An image's size by range requests of a few KiB; the whole image only where nothing less tells it."""
        with self._budget.hold() as hold:
            async with self._bounded("size"):
                return await self._size(url, hold)

    async def _size(self, url: str, hold: Hold) -> Measured:
        head = b""
        for step in HEAD_STEPS:
            async with self._get(url, _range(len(head), step - 1)) as response:
                if response.status == 200:
                    return await self._size_while_reading(response, hold)
                total = _range_total(response, len(head))
                hold.grow(step - len(head))
                head += await _read_up_to(response, step - len(head))
                validators = _validators_of(response, total)
            found = await run_in_thread(measure, head, total=total)
            if found is Need.TAIL and total is not None:
                found = measure(head, total=total, tail=await self._tail(url, total))
            if isinstance(found, ImageSize):
                return Measured(found, total, validators)
            if found is Need.ALL or (total is not None and len(head) >= total):
                break
        async with self._get(url) as response:
            if response.status != 200:
                raise _bad_status(response.status)
            return await self._measure_whole(response, hold, b"")

    async def _size_while_reading(self, response: aiohttp.ClientResponse, hold: Hold) -> Measured:
        """The server sends everything: stop as soon as the size is known."""
        total = response.content_length
        head = b""
        for step in HEAD_STEPS:
            hold.grow(step - len(head))
            head += await _read_up_to(response, step - len(head))
            whole = len(head) < step
            found = await run_in_thread(measure, head, total=len(head) if whole else total)
            if isinstance(found, ImageSize):
                return Measured(found, total, _validators_of(response, total))
            if whole or found is not Need.MORE:
                break
        return await self._measure_whole(response, hold, head)

    async def _measure_whole(self, response: aiohttp.ClientResponse, hold: Hold, head: bytes) -> Measured:
        data, validators = await self._read_whole(response, hold, head)
        found = await run_in_thread(measure, data, total=len(data))
        if isinstance(found, Need):
            raise Unusable(Reason.DECODE_FAILED, "the image ends within its header")
        return Measured(found, len(data), validators)

    async def _tail(self, url: str, total: int) -> bytes:
        start = max(0, total - TAIL_BYTES)
        async with self._get(url, _range(start, total - 1)) as response:
            if response.status != 206 or _range_total(response, start) != total:
                return b"?"
            return await _read_up_to(response, total - start)

    async def _read_whole(self, response: aiohttp.ClientResponse, hold: Hold, head: bytes) -> tuple[bytes, Validators]:
        length = response.content_length
        if length is not None and length > self._max_bytes:
            raise self._too_large(f"{length}")
        pieces = [head]
        size = len(head)
        async for piece in response.content.iter_chunked(_CHUNK):
            size += len(piece)
            if size > self._max_bytes:
                raise self._too_large(f"more than {self._max_bytes}")
            hold.grow(len(piece))
            pieces.append(piece)
        MEDIA_FETCHED_BYTES.inc(size)
        return b"".join(pieces), _validators_of(response, length)

    @asynccontextmanager
    async def _get(self, url: str, headers: Mapping[str, str] = _NONE) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer at the end of the redirects, every hop checked. Leaving early closes the connection."""
        for _ in range(self._max_redirects + 1):
            check_url(url, self._rules)
            target = yarl.URL(url, encoded=url.isascii())
            async with self._session.get(target, headers=headers, allow_redirects=False) as response:
                if response.status not in _REDIRECTS:
                    yield response
                    return
                location = response.headers.get("Location")
            if not location:
                raise Unusable(Reason.FETCH_FAILED, "the server redirects to nowhere")
            url = urljoin(url, location)
        raise Unusable(Reason.FETCH_FAILED, f"more than {self._max_redirects} redirects (KVROUTE_MEDIA_MAX_REDIRECTS)")

    @asynccontextmanager
    async def _bounded(self, what: str) -> AsyncIterator[None]:
        """One deadline over all hops, and one word for whatever goes wrong on the way."""
        outcome = "failed"
        try:
            async with asyncio.timeout(self._seconds):
                yield
            outcome = "ok"
        except Fenced:
            outcome = "fenced"
            raise
        except Unusable as error:
            outcome = error.reason.value
            raise
        except TimeoutError:
            raise Unusable(
                Reason.FETCH_FAILED, f"no answer within {self._seconds:g} s (KVROUTE_MEDIA_FETCH_SECONDS)"
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            fenced = refusal_in(error)
            if fenced is not None:
                outcome = "fenced"
                raise fenced from None
            # The name of the error only: its text may repeat the URL.
            raise Unusable(Reason.FETCH_FAILED, f"the server could not be read ({type(error).__name__})") from None
        finally:
            MEDIA_FETCHES.labels(what, outcome).inc()

    def _too_large(self, size: str) -> Unusable:
        return Unusable(
            Reason.TOO_LARGE, f"medium of {size} bytes, the limit is {self._max_bytes} (KVROUTE_MEDIA_MAX_BYTES)"
        )


async def _read_up_to(response: aiohttp.ClientResponse, size: int) -> bytes:
    pieces: list[bytes] = []
    while size > 0:
        piece = await response.content.read(size)
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    MEDIA_FETCHED_BYTES.inc(sum(map(len, pieces)))
    return b"".join(pieces)


def _range_total(response: aiohttp.ClientResponse, start: int) -> int | None:
    """The file's length as a range answer says it; None if it does not. Raises Unusable for other answers."""
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    total = int(match[3]) if match and match[3] != "*" else None
    if response.status == 416 and (total == 0 or start == 0):
        raise Unusable(Reason.DECODE_FAILED, "the image is empty")
    if response.status != 206:
        raise _bad_status(response.status)
    if match is None or match[1] is None or int(match[1]) != start:
        raise Unusable(Reason.FETCH_FAILED, "the server answers a range request with another range")
    return total


def _range(first: int, last: int) -> dict[str, str]:
    return {"Range": f"bytes={first}-{last}"}


def _conditions(known: Validators | None) -> dict[str, str]:
    """Headers that ask for the body only if it is another version."""
    if known is None:
        return {}
    stated = {"If-None-Match": known.etag, "If-Modified-Since": "" if known.etag else known.last_modified}
    return {name: value for name, value in stated.items() if value}


def _keeping(response: aiohttp.ClientResponse) -> tuple[float, bool]:
    """For how many seconds an answer is fresh, and whether it may be remembered."""
    control = response.headers.get("Cache-Control", "").lower()
    if "no-store" in control:
        return 0.0, False
    found = _MAX_AGE.search(control)
    if found is None or "no-cache" in control:
        return 0.0, True
    age = response.headers.get("Age", "")
    return float(max(0, int(found[1]) - (int(age) if age.isascii() and age.isdigit() and len(age) < 10 else 0))), True


def _bad_status(status: int) -> Unusable:
    return Unusable(Reason.FETCH_FAILED, f"the server answers {status}, expected 200")


def _validators_of(response: aiohttp.ClientResponse, length: int | None) -> Validators:
    headers = response.headers
    return Validators(headers.get("ETag", ""), headers.get("Last-Modified", ""), length)


def _content_type(response: aiohttp.ClientResponse) -> str:
    stated = response.headers.get("Content-Type", "").split(";", 1)[0].strip().lower()
    return stated if _TYPE.fullmatch(stated) else "application/octet-stream"
