"""``kvroute demo``: the main job in a minute, with its claims checked. Fails when one of them does not hold."""

from __future__ import annotations

import asyncio
import io
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import av
import numpy as np
from aiohttp import web
from PIL import Image
from rich.console import Console
from rich.table import Table

from services.audit.database import open_engine
from services.audit.explain import Attempt, Explanation, UnknownRequest, explain
from services.cli.free_port import free_port
from services.cli.local_stack import LocalStack, StackPlan
from services.cli.steps import say_step
from services.runtime.errors import KvrouteError
from services.runtime.settings import Settings

SYSTEM = (
    "You are the product assistant of a shop that sells lamps, chairs and tables. Answer in one short sentence, "
    "name the article first, never invent a price, and say so when a picture shows something the shop does not sell. "
) * 4
SIZE = (448, 616)
"""Height and width of the demo's images: 352 tokens for Qwen2-VL and Qwen2.5-VL."""
VIDEO = ".mp4"
VIDEO_SIZE = (224, 308)
VIDEO_FRAMES, VIDEO_RATE = 40, 10
"""4 seconds: 8 frames are taken, in groups of two, 88 tokens each."""
SETTLE_SECONDS = 0.4
"""Between two questions: the worker's KV events (coalesced for 20 ms) reach the router's index."""
AUDIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One question and what became of it. Blocks and tokens are those of the decision and of the engine's usage."""

    name: str
    worker: str
    predicted_blocks: int
    total_blocks: int
    predicted_tokens: int
    realised_tokens: int
    text_blocks: int
    mode: str


@dataclass(slots=True)
class Claims:
    """What has to be true, and whether it was."""

    held: list[tuple[str, bool]] = field(default_factory=list)

    def check(self, claim: str, holds: bool) -> None:
        """Note one claim."""
        self.held.append((claim, holds))

    @property
    def closing(self) -> str:
        """How many of them held, in words."""
        return f"{sum(holds for _, holds in self.held)} of {len(self.held)} hold"

    @property
    def all_hold(self) -> bool:
        """Whether every claim held."""
        return all(holds for _, holds in self.held)


class Shop:
    """Asks the gateway and reads the audit store."""

    def __init__(self, stack: LocalStack, http: aiohttp.ClientSession, model: str) -> None:
        self._stack = stack
        self._http = http
        self._model = model
        self._store = open_engine(stack.settings)

    async def close(self) -> None:
        """Give the audit connection back."""
        await self._store.dispose()

    async def ask(self, name: str, question: str, medium: str | None = None, *, identity: str | None = None) -> Asked:
        """Ask about the image or video at a URL, wait for the answer, and read what the audit store says of it."""
        request_id = await self._post(question, medium, identity=identity, max_tokens=8)
        attempt, explanation = await self._audited(request_id, finished=True)
        await asyncio.sleep(SETTLE_SECONDS)
        return _asked(name, attempt, explanation)

    @asynccontextmanager
    async def busy(self, question: str, image: str) -> AsyncIterator[str]:
        """Keep the worker that holds the image answering a long request; gives its id."""
        request_id = uuid.uuid4().hex
        posting = asyncio.ensure_future(
            self._post(question, image, identity=None, max_tokens=4000, request_id=request_id)
        )
        try:
            attempt, _ = await self._audited(request_id, finished=False)
            yield str((attempt.decision or {})["worker_id"])
        finally:
            posting.cancel()
            with suppress(asyncio.CancelledError):
                await posting

    async def _post(
        self, question: str, medium: str | None, *, identity: str | None, max_tokens: int, request_id: str | None = None
    ) -> str:
        request_id = request_id or uuid.uuid4().hex
        content: Any = question
        if medium is not None:
            kind = "video_url" if medium.endswith(VIDEO) else "image_url"
            content = [{"type": kind, kind: {"url": medium}}, {"type": "text", "text": question}]
        body = {
            "model": self._model,
            "max_tokens": max_tokens,
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}],
        }
        headers = {"X-Request-Id": request_id} | ({"X-Kvroute-Identity": identity} if identity else {})
        url = f"{self._stack.gateway_url}/v1/chat/completions"
        async with self._http.post(url, json=body, headers=headers) as response:
            text = await response.text()
            if response.status != 200:
                raise KvrouteError(f"the gateway answered {response.status}: {text[:300]}")
        return request_id

    async def _audited(self, request_id: str, *, finished: bool) -> tuple[Attempt, Explanation]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + AUDIT_SECONDS
        while loop.time() < deadline:
            with suppress(UnknownRequest):
                async with self._store.connect() as connection:
                    found = (await explain(connection, request_id))[0]
                for attempt in found.attempts:
                    ended = (attempt.outcome or {}).get("cached_tokens") is not None
                    if attempt.decision is not None and (ended or not finished):
                        return attempt, found
            await asyncio.sleep(0.05)
        raise KvrouteError(f"request {request_id} did not reach the audit store within {AUDIT_SECONDS:.0f} s")


def _asked(name: str, attempt: Attempt, explanation: Explanation) -> Asked:
    decision, outcome = attempt.decision or {}, attempt.outcome or {}
    offsets = [row["token_offset"] for row in explanation.media if row["token_offset"] is not None]
    until = min(offsets) if offsets else decision["prompt_tokens"]
    return Asked(
        name=name,
        worker=decision["worker_id"],
        predicted_blocks=decision["usable_blocks"],
        total_blocks=decision["total_blocks"],
        predicted_tokens=decision["predicted_tokens"],
        realised_tokens=outcome["cached_tokens"],
        text_blocks=until // decision["block_size"],
        mode=decision["mode"],
    )


def _png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="PNG", compress_level=1)
    return out.getvalue()


def _mp4(seed: int) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (*VIDEO_SIZE, 3), dtype=np.uint8)
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        stream = file.add_stream("libx264", rate=VIDEO_RATE, options={"preset": "ultrafast", "crf": "40"})
        stream.height, stream.width = VIDEO_SIZE
        stream.pix_fmt = "yuv420p"
        for number in range(VIDEO_FRAMES):
            pixels = np.ascontiguousarray(np.roll(noise, 4 * number, axis=1))
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(stream.encode(None))
    return out.getvalue()


@asynccontextmanager
async def _site() -> AsyncIterator[str]:
    """A small web server with two pictures and two videos, there under any folder. Gives its address."""
    files = {"a.png": _png(1), "b.png": _png(2), "v.mp4": _mp4(1), "w.mp4": _mp4(2)}

    async def answer(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return web.Response(body=files[name], content_type="video/mp4" if name.endswith(VIDEO) else "image/png")

    application = web.Application()
    application.router.add_get("/{shelf}/{name}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def demo(settings: Settings, plan: StackPlan, console: Console) -> tuple[list[Asked], Claims]:
    """Run the demo on free ports and in a folder of its own. Returns the rows and the claims."""
    with tempfile.TemporaryDirectory(prefix="kvroute-demo-") as folder:
        own = settings.model_copy(
            update={
                "data_dir": Path(folder),
                "database_url": None,
                "gateway_port": free_port(),
                "media_allow_private": True,
                "log_level": "warning",
            }
        )
        started = LocalStack(own, plan, say=partial(say_step, console))
        async with started as stack, aiohttp.ClientSession() as http, _site() as site:
            shop = Shop(stack, http, next(iter(stack.settings.models)))
            try:
                return await _walk(shop, site, console)
            finally:
                await shop.close()


async def _walk(shop: Shop, site: str, console: Console) -> tuple[list[Asked], Claims]:
    rows: list[Asked] = []
    claims = Claims()

    async def ask(name: str, question: str, medium: str | None = None, identity: str | None = None) -> Asked:
        with console.status(name):
            row = await shop.ask(name, question, f"{site}/{medium}" if medium else None, identity=identity)
        rows.append(row)
        claims.check(f"{name}: predicted = realised", row.predicted_tokens == row.realised_tokens)
        return row

    await ask("text", "Which chairs do you have?")
    first = await ask("image A", "What is this?", "shelf/a.png")
    again = await ask("image A again", "Which colour is it?", "shelf/a.png")
    claims.check("A again goes to the same worker", again.worker == first.worker)
    claims.check("A again reuses more than the first time", again.realised_tokens > first.realised_tokens)
    claims.check("A again reuses the picture", again.predicted_blocks > again.text_blocks)
    other = await ask("image B, same size", "Which colour is it?", "shelf/b.png")
    claims.check("B gets no credit beyond the text before it", other.realised_tokens <= other.text_blocks * 16)
    moved = await ask("image A, other URL, url identity", "Which colour is it?", "moved/a.png", "url")
    claims.check("url identity: another URL is another image", moved.predicted_blocks <= moved.text_blocks)
    once = await ask("image A, content identity", "Which colour is it?", "shelf/a.png", "content")
    twice = await ask("image A, other URL, content identity", "Is it new?", "moved/a.png", "content")
    claims.check("content identity: another URL is the same image", twice.predicted_blocks > twice.text_blocks)
    claims.check("content identity: same worker", twice.worker == once.worker)
    seen = await ask("video V", "What happens here?", "shelf/v.mp4")
    claims.check("the video is exact", seen.mode == "exact")
    replayed = await ask("video V again", "Who is in it?", "moved/v.mp4")
    claims.check("V again goes to the same worker", replayed.worker == seen.worker)
    claims.check("V again reuses more than the first time", replayed.realised_tokens > seen.realised_tokens)
    claims.check("V again reuses the video", replayed.predicted_blocks > replayed.text_blocks)
    cut = await ask("video W, same size and length", "Who is in it?", "shelf/w.mp4")
    claims.check("W gets no credit beyond the text before it", cut.realised_tokens <= cut.text_blocks * 16)
    long_question = "Compare it with every one of these. " + "A lamp, a chair, a table. " * 700
    async with shop.busy(long_question, f"{site}/shelf/a.png") as busy:
        claims.check("a long request with A goes where A is", busy == again.worker)
        away = await ask(f"image A while {busy} is busy", "Is it heavy?", "shelf/a.png")
    claims.check("A goes elsewhere while its worker is busy", away.worker != busy)
    return rows, claims


def table_of(rows: list[Asked]) -> Table:
    """The demo's table, for a terminal."""
    table = Table("request", "worker", "overlap / blocks", "predicted", "realised", "view", title="kvroute demo")
    for row in rows:
        right = row.predicted_tokens == row.realised_tokens
        table.add_row(
            row.name,
            row.worker,
            f"{row.predicted_blocks} / {row.total_blocks}",
            f"{row.predicted_tokens} tokens",
            f"[{'green' if right else 'red'}]{row.realised_tokens} tokens[/]",
            row.mode,
        )
    return table
