"""A running fleet with every way into it, for tests that send what nobody should send."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.e2e.asking import Answer, ask, body
from tests.e2e.audited import Audited, attempts
from tests.e2e.fleet import MODEL, Fleet
from tests.e2e.site import Site
from tests.e2e.wire import Wire
from tests.waiting import PATIENCE_SECONDS

_LAG = re.compile(r"^kvroute_consumer_lag_records\{.*\} (\S+)$", re.MULTILINE)
_LOOP = re.compile(r"^kvroute_loop_lag_seconds (\S+)$", re.MULTILINE)
_HANDLED = re.compile(r"^kvroute_records_handled_total\{.*\} (\S+)$", re.MULTILINE)
_WINDOW_SECONDS = 10.0
_SAMPLE_SECONDS = 4.0
"""The gauge keeps the worst of 10 s: nothing falls between two samples."""


@dataclass
class Field:
    """The fleet, a web client, a Kafka client, a web site, and what was seen of the processes."""

    fleet: Fleet
    wire: Wire
    http: aiohttp.ClientSession
    site: Site
    loop_lag: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    buried: int = 0
    """Dead letters there should be by now."""
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def new_id(self, what: str = "bad") -> str:
        """A request id nobody used."""
        return f"{what}-{next(self._numbers)}"

    async def post(
        self, data: bytes, path: str = "/v1/chat/completions", **headers: str
    ) -> tuple[int, str, dict[str, Any]]:
        """Raw bytes as a chat request. Status, error code (empty for none) and body."""
        sent = {"Content-Type": "application/json", **headers}
        async with self.http.post(self.fleet.gateway_url + path, data=data, headers=sent) as answer:
            found = await answer.json()
            return answer.status, (found.get("error") or {}).get("code") or "", found

    async def ask(self, text: str, images: tuple[str, ...] = (), request_id: str = "", **extra: Any) -> Answer:
        """A chat request in good form."""
        payload = body(MODEL.name, text, images, **extra)
        return await ask(self.http, self.fleet.gateway_url, request_id or self.new_id(), payload)

    async def serves(self) -> None:
        """The next request is served, whichever way it comes."""
        answer = await self.ask("Are you there?", request_id=self.new_id("next"))
        assert answer.status == 200, answer
        request_id = self.new_id("next-raw")
        await self.wire.ask({"request_id": request_id, "body": body(MODEL.name, "And by Kafka?")})
        assert (await self.wire.final(request_id)).get("error") is None

    async def row(self, request_id: str) -> Audited:
        """The audited attempt of a request, once it is decided and ended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while True:
            rows = [row for row in attempts(self.database) if row.request_id == request_id and row.outcome == "routed"]
            if rows and all(row.status for row in rows):
                assert len(rows) == 1, rows
                return rows[0]
            assert loop.time() < deadline, f"no ended attempt of {request_id} is audited: {rows}"
            await asyncio.sleep(0.1)

    @property
    def database(self) -> Path:
        """The audit store."""
        return self.fleet.folder / "audit.sqlite3"

    async def runs(self) -> Counter[str]:
        """How often the engines ran each request, by the id they were given."""
        runs: Counter[str] = Counter()
        for url in self.fleet.engine_urls.values():
            async with self.http.get(f"{url}/sim/requests") as seen:
                runs.update((await seen.json())["requests"])
        return runs

    async def lags(self) -> dict[str, float]:
        """Records waiting, by process."""
        return {name: sum(map(float, _LAG.findall(await self.fleet.metrics(name)))) for name in self.fleet.names()}

    async def handled(self) -> dict[str, float]:
        """Records handled so far, by process."""
        return {name: sum(map(float, _HANDLED.findall(await self.fleet.metrics(name)))) for name in self.fleet.names()}

    async def skipped(self, topic: str) -> dict[str, float]:
        """Records of a topic that projections could not apply, by process."""
        found = {}
        for name in self.fleet.names():
            lines = (await self.fleet.metrics(name)).splitlines()
            counts = [line for line in lines if line.startswith("kvroute_projection_errors_total{")]
            found[name] = sum(float(line.rsplit(" ", 1)[1]) for line in counts if f'"kvroute.{topic}.v1"' in line)
        return found

    def resident(self) -> dict[str, int]:
        """Resident bytes, by process."""
        return {name: self.fleet.resident_bytes(name) for name in self.fleet.names()}

    async def watch(self) -> None:
        """Keep the worst loop lag of every process until cancelled; loading models at the start is not meant."""
        await asyncio.sleep(_WINDOW_SECONDS)
        while True:
            for name in self.fleet.names():
                try:
                    found = _LOOP.search(await self.fleet.metrics(name))
                except (aiohttp.ClientError, KeyError):
                    continue  # it is being replaced
                self.loop_lag[name] = max(self.loop_lag[name], float(found.group(1)) if found else 0.0)
            await asyncio.sleep(_SAMPLE_SECONDS)
